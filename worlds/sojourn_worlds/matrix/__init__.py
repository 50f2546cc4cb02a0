"""An arena of repeated matrix games: two players choose at once, again and again, and are paid by a table.

Ours; the games are the textbook ones, and the opponents those of Axelrod's tournaments and their kin (Axelrod 1984;
Nowak and Sigmund 1993 for Pavlov; Brown 1951 for fictitious play). Against an opponent of the world's the reward says
how much of what can be won from it was won, which dynamic programming knows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.tasks.splits import of_task, tasks_of
from sojourn.types import Task
from sojourn_worlds.matrix.opponents import OPPONENTS, Opponent, Payoffs, outlook
from sojourn_worlds.table import Table, pick

SEATS = ("row", "column")


@dataclass(frozen=True)
class Rules:
    """A game: what can be said, the first the friendly one where there is one, and what each player is paid."""

    actions: tuple[str, ...]
    row: Payoffs
    column: Payoffs  # by the column player's own action and then the row player's

    def of(self, seat: str) -> Payoffs:
        return self.row if seat == "row" else self.column


def _alike(first: str, second: str, payoffs: Payoffs) -> Rules:
    return Rules((first, second), payoffs, payoffs)


GAMES = {
    "prisoners_dilemma": _alike("cooperate", "defect", ((3, 0), (5, 1))),
    "stag_hunt": _alike("stag", "hare", ((4, 0), (3, 2))),
    "chicken": _alike("swerve", "straight", ((3, 1), (4, 0))),
    "matching_pennies": Rules(("heads", "tails"), ((1, -1), (-1, 1)), ((-1, 1), (1, -1))),
    "battle_of_the_sexes": Rules(("opera", "football"), ((3, 0), (0, 2)), ((2, 0), (0, 3))),
}
NAMES = (*GAMES, "random")


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Repeated matrix games of `rounds`. `game`: one of the textbook's, "random" (three actions, payoffs drawn by
    seed), or "any" (one of these, by seed). `neutral` calls the actions a, b, c, so that no name gives the game away.

    `opponent`: a player of the world's (see `Opponent`; "random" tosses its coins by seed), "any" (one of these, by
    seed; which one has to be found out), or "self", where the policy sits in both seats. Against the world's, the seat
    follows from the seed, the reward is 0 for the worst that can be done against this opponent and 1 for the best, and
    a play succeeds with `threshold` or more. The expert knows the opponent, its coins too. In "self" each is paid its
    mean payoff on a scale where the game's lowest is -1 and its highest 1.
    """

    about: ClassVar[About] = About(
        source="ours: textbook games, with the opponents of Axelrod 1984 and their kin",
        licence="Apache-2.0",
        seats="1-2",
        smallest={"game": "prisoners_dilemma", "opponent": "always_cooperate", "rounds": 4},
    )

    game: str = "prisoners_dilemma"
    opponent: str = "tit_for_tat"
    rounds: int = 10
    neutral: bool = False
    threshold: float = 0.9
    choices: bool = False
    train: int = 100_000
    test: int = 1_000

    def __post_init__(self) -> None:
        require_within("matrix", self, {"rounds": (1, 30), "threshold": (0, 1), **SIZES})
        require_one_of("matrix", self, {"game": (*NAMES, "any"), "opponent": ("self", *OPPONENTS, "any")})

    @property
    def seats(self) -> tuple[str, ...]:
        return SEATS if self.opponent == "self" else ("agent",)

    def tasks(self, split: str) -> Sequence[Task]:
        return tasks_of("matrix", self, split)

    def make(self, task: Task) -> Table:
        own = of_task(self, task)
        rng = random.Random(f"matrix {task.seed}")
        game = rng.choice(NAMES) if own.game == "any" else own.game
        if own.opponent == "self":
            rules = GAMES[game] if game in GAMES else _drawn(task.seed, 0)
            return Table(Match(own, task.seed, _called(rules, own.neutral)), choices=own.choices, advised=False)
        name = rng.choice(OPPONENTS) if own.opponent == "any" else own.opponent
        seat, other = rng.sample(SEATS, 2)
        for attempt in count():
            rules = _called(GAMES[game] if game in GAMES else _drawn(task.seed, attempt), own.neutral)
            match = Match(own, task.seed, rules, seat, Opponent(name, rules.of(other), task.seed))
            first = match.outlook()
            if first.most > first.least:  # there is something to play for
                return Table(match, {other: _scripted}, alone=seat, choices=own.choices)
        raise AssertionError("unreachable: count() does not end")


@dataclass
class Match:
    config: Matrix
    seed: int
    rules: Rules
    alone: str = ""  # the policy's seat, where the world plays the other
    opponent: Opponent | None = None
    played: list[tuple[int, int]] = field(default_factory=list)  # the actions of row and column, by round
    hidden: int | None = None  # what row has said in this round, which column does not know yet

    @property
    def mover(self) -> str | None:
        if len(self.played) == self.config.rounds:
            return None
        return "row" if self.hidden is None else "column"

    def brief(self, seat: str) -> str:
        actions, payoffs = self.rules.actions, self.rules.of(seat)
        other = self.rules.of("column" if seat == "row" else "row")
        table = [
            f"You {mine}, they {theirs}: you get {payoffs[i][j]}, they get {other[j][i]}."
            for i, mine in enumerate(actions)
            for j, theirs in enumerate(actions)
        ]
        listed = " or ".join((", ".join(actions[:-1]), actions[-1]))
        return (
            f"You play {self.config.rounds} rounds with another player. In each round both of you choose at once, "
            f"unseen: {listed}. {' '.join(table)} Get as many points as you can. Say {listed}."
        )

    def view(self, seat: str) -> str:
        round_ = f"Round {len(self.played) + 1} of {self.config.rounds}."
        if not self.played:
            return round_
        row, column = self.played[-1]
        own, other = (row, column) if seat == "row" else (column, row)
        paid, theirs = self._paid(self.played[-1], seat), self._paid(self.played[-1], _other(seat))
        said = f"You: {self.rules.actions[own]}, they: {self.rules.actions[other]}."
        return f"{said} You get {paid}, they get {theirs}. {round_}"

    def choices(self) -> Sequence[str]:
        return self.rules.actions

    def play(self, said: str) -> Mapping[str, float]:
        chosen = pick(said, self.rules.actions)
        if self.hidden is None:
            self.hidden = chosen
            return {}
        self.played.append((self.hidden, chosen))
        self.hidden = None
        if self.mover is not None:
            return {}
        return {self.alone: self.reward(self.alone)} if self.alone else {seat: self.reward(seat) for seat in SEATS}

    def points(self, seat: str) -> int:
        return sum(self._paid(pair, seat) for pair in self.played)

    def reward(self, seat: str) -> float:
        if self.opponent is not None:
            most, least, _ = outlook(self.opponent, self.rules.of(seat), self.config.rounds)[0][self.opponent.begin()]
            return (self.points(seat) - least) / (most - least)
        payoffs = [paid for table in (self.rules.row, self.rules.column) for row in table for paid in row]
        low, high = min(payoffs), max(payoffs)
        return 2 * (self.points(seat) / len(self.played) - low) / (high - low) - 1

    def success(self) -> bool:
        return self.reward(self.alone) >= self.config.threshold - 1e-9

    def info(self) -> Mapping[str, float]:
        """Points so far, and how often both have said the first action."""
        friendly = sum(pair == (0, 0) for pair in self.played)
        return {"row": float(self.points("row")), "column": float(self.points("column")), "both_first": float(friendly)}

    def key(self) -> str:
        said = "".join(f"{row}{column}" for row, column in self.played)
        return f"matrix/{self.seed}/{said}/{self.mover}"  # not what is hidden: the mover does not know it

    def outlook(self) -> Any:
        assert self.opponent is not None
        found = outlook(self.opponent, self.rules.of(self.alone), self.config.rounds)
        return found[len(self.played)][self.thinks()]

    def thinks(self) -> Any:
        """The state that the opponent is in."""
        assert self.opponent is not None
        state = self.opponent.begin()
        for row, column in self.played:
            own, other = (column, row) if self.alone == "row" else (row, column)
            state = self.opponent.after(state, own, other)
        return state

    def expert(self) -> str:
        return self.rules.actions[self.outlook().best]

    def _paid(self, pair: tuple[int, int], seat: str) -> int:
        row, column = pair
        return self.rules.row[row][column] if seat == "row" else self.rules.column[column][row]


def _scripted(match: Match) -> str:
    assert match.opponent is not None
    return match.rules.actions[match.opponent.act(match.thinks(), len(match.played))]


def _other(seat: str) -> str:
    return "column" if seat == "row" else "row"


def _called(rules: Rules, neutral: bool) -> Rules:
    return Rules(tuple("abc"[: len(rules.actions)]), rules.row, rules.column) if neutral else rules


def _drawn(seed: int, attempt: int) -> Rules:
    rng = random.Random(f"matrix {seed} {attempt}")
    row, column = (tuple(tuple(rng.randint(0, 9) for _ in range(3)) for _ in range(3)) for _ in range(2))
    return Rules(("a", "b", "c"), row, column)
