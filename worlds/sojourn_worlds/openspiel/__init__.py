"""Games of OpenSpiel, by their names: board games, cards and dice, for one seat or several.

Rules and dynamics are those of OpenSpiel (Lanctot et al. 2019, arXiv:1908.09453; the package `open-spiel`); the words
around them, the seats, the opponents and the expert are ours.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from sojourn.envs.about import About
from sojourn.envs.env_threads import ALL_CALLS, EnvThreads, ThreadedEnv
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.errors import ConfigError
from sojourn.tasks.splits import of_task, tasks_of
from sojourn.types import Task
from sojourn_worlds.openspiel.position import Position, load
from sojourn_worlds.openspiel.rules import RULES
from sojourn_worlds.openspiel.solver import expert, game_value, over_at_once, scripted
from sojourn_worlds.table import Table

TRIED = tuple(RULES)
"""The games whose rules are told; others are named, and their texts shown as OpenSpiel gives them."""


@dataclass(frozen=True, kw_only=True)
class OpenSpiel:
    """A game of OpenSpiel. `game` is its name, with parameters where it takes any: `hex(board_size=4)`.

    `opponent`: "random" (its moves follow from the seed), "expert" (minimax where the game is small, else a tree search
    of `simulations`; games of perfect information for two, zero-sum), or "self", where the policy sits in every seat;
    games for one have none. Which player the agent is follows from the seed, but for "expert" in a small game that one
    player can win by force: it is that one. `turns` ends the play, unpaid, after so many moves of all. `told` names the
    possible actions in the text, where they are at most 40.

    Rewards are the game's returns, divided so that they lie between -1 and 1. A play succeeds that is won; against
    "expert" in a small game that nobody can win by force, a draw is enough. The expert of a zero-sum game for two,
    without chance or secrets, looks for a line that wins against the random opponent's very moves, through good moves
    where it can; it takes up to a second for a move of a large game.
    """

    about: ClassVar[About] = About(
        source="OpenSpiel 2 (Lanctot et al. 2019, arXiv:1908.09453)",
        licence="Apache-2.0",
        extra="openspiel",
        seats="1-n",
        smallest={"game": "tic_tac_toe", "opponent": "random"},
    )

    game: str = "tic_tac_toe"
    opponent: Literal["random", "expert", "self"] = "random"
    simulations: int = 100
    turns: int = 200
    told: bool = True
    choices: bool = False
    train: int = 100_000
    test: int = 1_000

    def __post_init__(self) -> None:
        require_within("openspiel", self, {"simulations": (2, 100_000), "turns": (1, 100_000), **SIZES})
        require_one_of("openspiel", self, {"opponent": ("random", "expert", "self")})
        loaded = load(self.game)
        if self.opponent == "expert" and not (loaded.perfect and loaded.duel):
            raise ConfigError(
                f'openspiel: opponent = "expert" needs a zero-sum game of two players who see everything, but '
                f'{self.game} is none: use opponent = "random"'
            )

    @property
    def seats(self) -> tuple[str, ...]:
        players = load(self.game).players
        return _names(players) if self.opponent == "self" and players > 1 else ("agent",)

    def tasks(self, split: str) -> Sequence[Task]:
        return tasks_of("openspiel", self, split)

    def make(self, task: Task) -> ThreadedEnv:
        """Moves that are searched for, and the solving of a game, are made aside; what is known at once is not."""
        own = of_task(self, task)
        loaded = load(own.game)
        advised = (own.opponent != "self" or loaded.players == 1) and loaded.perfect and loaded.duel
        offers = {"fork", "state_key"} | ({"expert"} if advised and not loaded.chance else set())
        slow = ALL_CALLS if own.opponent == "expert" else {"expert"}
        return self._aside.make(lambda: _dealt(own, task), offers, slow)

    @cached_property
    def _aside(self) -> EnvThreads:
        return EnvThreads(os.cpu_count() or 1, "openspiel")


def _dealt(own: OpenSpiel, task: Task) -> Table:
    loaded = load(own.game)
    names = _names(loaded.players)
    alone = ""
    if own.opponent != "self" or loaded.players == 1:
        alone = random.Random(f"openspiel {task.seed}").choice(names)
    goal = 0.0
    if own.opponent == "expert" and (value := game_value(own.game)) is not None:
        if value:
            alone = names[0] if value > 0 else names[1]
        goal = 0.0 if value else -0.5
    for attempt in range(100):
        state = loaded.game.new_initial_state()
        position = Advised(
            loaded, f"{task.seed} {attempt}", own.turns, names, state, own.told, alone, own.opponent,
            own.simulations, goal,
        )  # fmt: skip
        if alone and over_at_once(position):
            continue
        others = {name: _scripted for name in names if name != alone} if alone else {}
        advised = bool(alone) and loaded.perfect and loaded.duel and not loaded.chance
        return Table(position, others, alone=alone, choices=own.choices, advised=advised)
    raise ConfigError(f"openspiel: {own.game} is over before the agent can act: name another game")


class Advised(Position):
    """A position that says what the expert would do."""

    def expert(self) -> str:
        return self.called(expert(self))


def _names(players: int) -> tuple[str, ...]:
    return tuple(f"player{number}" for number in range(players))


def _scripted(position: Position) -> str:
    return position.called(scripted(position))
