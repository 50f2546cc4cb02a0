"""Games of TextArena, by their ids: puzzles for one, and games for several.

Rules, prompts and texts are those of TextArena (Guertler et al. 2025, arXiv:2504.11442; the package `textarena`); the
seats, the opponent, the experts and the isolation are ours. It differs in that an invalid action is refused and costs
nothing (TextArena counts it, and the second in a row loses), that several actions at once are refused (TextArena takes
one of them, or all), and that of several boards at once the last is shown.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from sojourn.envs.about import About, require_module
from sojourn.envs.env_threads import EnvThreads, ThreadedEnv
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.tasks.splits import of_task, tasks_of
from sojourn.types import Task
from sojourn_worlds.table import Table
from sojourn_worlds.textarena.games import GAMES
from sojourn_worlds.textarena.match import Match, scripted


@dataclass(frozen=True, kw_only=True)
class TextArena:
    """A game of TextArena. `game` is its id, one of those that run offline and alike from the same seed.

    `opponent`: "random" (its actions follow from the seed), or "self", where the policy sits in every seat; puzzles for
    one have none. Which player the agent is follows from the seed. `turns` ends the play, unpaid, after so many actions
    of all, where the game has not ended before. A game of several pays 1, -1 or what it says in between; a puzzle pays
    1 when it is solved, else 0, or with `partial` the part of it that was. `choices` lists the possible actions, by
    trying all on copies. Some puzzles have an expert; where a win is few actions away, trying finds it.
    """

    about: ClassVar[About] = About(
        source="TextArena (Guertler et al. 2025, arXiv:2504.11442)",
        licence="MIT",
        extra="textarena",
        seats="1-n",
        smallest={"game": "TicTacToe-v0", "opponent": "random"},
    )

    game: str = "TicTacToe-v0"
    opponent: Literal["random", "self"] = "random"
    turns: int = 200
    partial: bool = False
    choices: bool = False
    train: int = 100_000
    test: int = 1_000

    def __post_init__(self) -> None:
        require_within("textarena", self, {"turns": (1, 100_000), **SIZES})
        require_one_of("textarena", self, {"game": tuple(GAMES), "opponent": ("random", "self")})

    @property
    def seats(self) -> tuple[str, ...]:
        players = GAMES[self.game].players
        return _names(players) if self.opponent == "self" and players > 1 else ("agent",)

    def tasks(self, split: str) -> Sequence[Task]:
        return tasks_of("textarena", self, split)

    def make(self, task: Task) -> ThreadedEnv:
        own = of_task(self, task)
        kind = GAMES[own.game]
        require_module("textarena", "sojourn-worlds[textarena]", "textarena")  # says at once that it is missing
        names, alone = _names(kind.players), ""
        if own.opponent == "random" or kind.players == 1:
            alone = random.Random(f"textarena {task.seed}").choice(names)
        others = {name: scripted for name in names if name != alone} if alone else {}
        advised = bool(alone) and (kind.expert is not None or kind.foreseen)

        def dealt() -> Table:
            match = Match(own.game, task.seed, own.turns, names, alone, own.partial)
            return Table(match, others, alone=alone, choices=own.choices, advised=advised)

        return self._aside.make(dealt, {"fork", "state_key"} | ({"expert"} if advised else set()))

    @cached_property
    def _aside(self) -> EnvThreads:
        """One: what is all Python would only hinder itself in several."""
        return EnvThreads(1, "textarena")


def _names(players: int) -> tuple[str, ...]:
    return tuple(f"player{number}" for number in range(players))
