"""Repeated matrix games: in each round two players choose an action at the same time and are paid by a payoff matrix.

A task fixes the game, the opponent and the agent's seat. An action is one of the game's actions; the observation tells
both actions and payoffs of the last round. The episode ends after `rounds` rounds, and the reward comes at its end.
Against an opponent of the world the reward says how much of what can be won from this opponent was won, which dynamic
programming computes; in self-play it is the mean payoff, scaled to [-1, 1].

Ours. The games are the textbook ones, the opponents those of Axelrod's tournaments and related ones (Axelrod 1984;
Nowak and Sigmund 1993 for Pavlov; Brown 1951 for fictitious play).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.tasks.splits import family_of_task, make_tasks_from_fields
from sojourn.types import Task
from sojourn_worlds.matrix.opponents import OPPONENTS, Opponent, Payoffs, outlook
from sojourn_worlds.turn_based import TurnBasedEnv, pick

SEATS = ("row", "column")


@dataclass(frozen=True)
class Rules:
    """A game: its actions, the cooperative one first where there is one, and the payoffs of both players."""

    actions: tuple[str, ...]
    row: Payoffs
    column: Payoffs  # by the column player's own action and then the row player's

    def of(self, seat: str) -> Payoffs:
        return self.row if seat == "row" else self.column


def _symmetric(first: str, second: str, payoffs: Payoffs) -> Rules:
    return Rules((first, second), payoffs, payoffs)


GAMES = {
    "prisoners_dilemma": _symmetric("cooperate", "defect", ((3, 0), (5, 1))),
    "stag_hunt": _symmetric("stag", "hare", ((4, 0), (3, 2))),
    "chicken": _symmetric("swerve", "straight", ((3, 1), (4, 0))),
    "matching_pennies": Rules(("heads", "tails"), ((1, -1), (-1, 1)), ((-1, 1), (1, -1))),
    "battle_of_the_sexes": Rules(("opera", "football"), ((3, 0), (0, 2)), ((2, 0), (0, 3))),
}
NAMES = (*GAMES, "random")


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Repeated matrix games of `rounds` rounds against an opponent, or in self-play.

    `game`: one of the textbook games, "random" (three actions, payoffs drawn by seed), or "any" (one of these, by
    seed). `neutral` calls the actions a, b, c, so that no name gives the game away.

    `opponent`: a player of the world (see `Opponent`; "random" draws from the seed), "any" (one of these, by seed; the
    agent has to find out which), or "self", where the policy sits in both seats. Against an opponent of the world the
    seat follows from the seed, the reward is 0 for the worst that can be done against it and 1 for the best, and an
    episode is a success with `threshold` or more. The expert knows the opponent and its random draws. In "self" each
    seat is paid its mean payoff on a scale where the game's lowest payoff is -1 and its highest 1.

    Turns tell the `regret` so far, in points, and that of each player as `row_regret` and `column_regret`: how many
    more the best single action would have had against what the other player did (external regret, of the reward
    `regret`).
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
        return make_tasks_from_fields("matrix", self, split)

    def make(self, task: Task) -> TurnBasedEnv:
        config = family_of_task(self, task)
        rng = random.Random(f"matrix {task.seed}")
        game = rng.choice(NAMES) if config.game == "any" else config.game
        if config.opponent == "self":
            rules = GAMES[game] if game in GAMES else _drawn(task.seed, 0)
            match = Match(config, task.seed, _with_neutral_names(rules, config.neutral))
            return TurnBasedEnv(match, choices=config.choices, has_expert=False)
        name = rng.choice(OPPONENTS) if config.opponent == "any" else config.opponent
        seat, other = rng.sample(SEATS, 2)
        for attempt in count():
            rules = _with_neutral_names(GAMES[game] if game in GAMES else _drawn(task.seed, attempt), config.neutral)
            match = Match(config, task.seed, rules, seat, Opponent(name, rules.of(other), task.seed))
            first = match.outlook()
            if first.best_points > first.worst_points:  # there is something to play for
                return TurnBasedEnv(match, {other: _scripted}, policy_seat=seat, choices=config.choices)
        raise AssertionError("unreachable: count() does not end")


@dataclass
class Match:
    """The state of one episode: the actions of both players in the rounds so far."""

    config: Matrix
    seed: int
    rules: Rules
    policy_seat: str = ""  # empty where the policy has both seats
    opponent: Opponent | None = None
    played: list[tuple[int, int]] = field(default_factory=list)  # the actions of row and column, by round
    row_action: int | None = None  # row's action in this round, which column does not know yet

    @property
    def current_seat(self) -> str | None:
        if len(self.played) == self.config.rounds:
            return None
        return "row" if self.row_action is None else "column"

    def system_prompt(self, seat: str) -> str:
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

    def observe(self, seat: str) -> str:
        round_ = f"Round {len(self.played) + 1} of {self.config.rounds}."
        if not self.played:
            return round_
        row, column = self.played[-1]
        own_action, their_action = (row, column) if seat == "row" else (column, row)
        paid, theirs = self._paid(self.played[-1], seat), self._paid(self.played[-1], _other(seat))
        last_round = f"You: {self.rules.actions[own_action]}, they: {self.rules.actions[their_action]}."
        return f"{last_round} You get {paid}, they get {theirs}. {round_}"

    def choices(self) -> Sequence[str]:
        return self.rules.actions

    def act(self, action: str) -> Mapping[str, float]:
        chosen = pick(action, self.rules.actions)
        if self.row_action is None:
            self.row_action = chosen
            return {}
        self.played.append((self.row_action, chosen))
        self.row_action = None
        if self.current_seat is not None:
            return {}
        return (
            {self.policy_seat: self.reward(self.policy_seat)}
            if self.policy_seat
            else {seat: self.reward(seat) for seat in SEATS}
        )

    def points(self, seat: str) -> int:
        return sum(self._paid(pair, seat) for pair in self.played)

    def reward(self, seat: str) -> float:
        if self.opponent is not None:
            outlooks = outlook(self.opponent, self.rules.of(seat), self.config.rounds)
            best, worst, _ = outlooks[0][self.opponent.begin()]
            return (self.points(seat) - worst) / (best - worst)
        payoffs = [paid for table in (self.rules.row, self.rules.column) for row in table for paid in row]
        low, high = min(payoffs), max(payoffs)
        return 2 * (self.points(seat) / len(self.played) - low) / (high - low) - 1

    def success(self) -> bool:
        return self.reward(self.policy_seat) >= self.config.threshold - 1e-9

    def info(self) -> Mapping[str, float]:
        """Returns the points so far, in how many rounds both players chose the first action, and regrets."""
        friendly = sum(pair == (0, 0) for pair in self.played)
        points = {"row": float(self.points("row")), "column": float(self.points("column"))}
        regrets = {f"{seat}_regret": self.regret(seat) for seat in SEATS}
        own = {"regret": regrets[f"{self.policy_seat}_regret"]} if self.policy_seat else {}
        return {**points, "both_first": float(friendly), **regrets, **own}

    def regret(self, seat: str) -> float:
        """Returns how many more points the best single action would have had against what the other player did."""
        payoffs = self.rules.of(seat)
        theirs = [column if seat == "row" else row for row, column in self.played]
        return float(max(sum(of_action[other] for other in theirs) for of_action in payoffs) - self.points(seat))

    def state_key(self) -> str:
        """Leaves out row's action in this round, which column does not know."""
        rounds_played = "".join(f"{row}{column}" for row, column in self.played)
        return f"matrix/{self.seed}/{rounds_played}/{self.current_seat}"

    def outlook(self) -> Any:
        """Returns what the agent can still win from here."""
        assert self.opponent is not None
        outlooks = outlook(self.opponent, self.rules.of(self.policy_seat), self.config.rounds)
        return outlooks[len(self.played)][self.opponent_state()]

    def opponent_state(self) -> Any:
        """Returns the state of the opponent's automaton."""
        assert self.opponent is not None
        state = self.opponent.begin()
        for row, column in self.played:
            own_action, their_action = (column, row) if self.policy_seat == "row" else (row, column)
            state = self.opponent.after(state, own_action, their_action)
        return state

    def expert(self) -> str:
        return self.rules.actions[self.outlook().best_action]

    def _paid(self, pair: tuple[int, int], seat: str) -> int:
        row, column = pair
        return self.rules.row[row][column] if seat == "row" else self.rules.column[column][row]


def _scripted(match: Match) -> str:
    assert match.opponent is not None
    return match.rules.actions[match.opponent.act(match.opponent_state(), len(match.played))]


def _other(seat: str) -> str:
    return "column" if seat == "row" else "row"


def _with_neutral_names(rules: Rules, neutral: bool) -> Rules:
    return Rules(tuple("abc"[: len(rules.actions)]), rules.row, rules.column) if neutral else rules


def _drawn(seed: int, attempt: int) -> Rules:
    rng = random.Random(f"matrix {seed} {attempt}")
    row, column = (tuple(tuple(rng.randint(0, 9) for _ in range(3)) for _ in range(3)) for _ in range(2))
    return Rules(("a", "b", "c"), row, column)
