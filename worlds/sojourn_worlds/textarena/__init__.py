"""Games of TextArena, by their ids: puzzles for one player, and games for several.

A task is a game with the seeds of its setup and of the opponent. An action is a text in square brackets; the
observation is what TextArena sends to the player since its last action. The reward comes when the game, or its limit of
`turns`, ends the episode: 1, -1 or what the game says in between.

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
from sojourn.tasks.splits import family_of_task, make_tasks_from_fields
from sojourn.types import Task
from sojourn_worlds.textarena.games import GAMES
from sojourn_worlds.textarena.match import Match, scripted
from sojourn_worlds.turn_based import TurnBasedEnv


@dataclass(frozen=True, kw_only=True)
class TextArena:
    """A game of TextArena. `game` is its id, one of those that run offline and are deterministic given the seed.

    `opponent`: "random" (its actions follow from the seed), or "self", where the policy sits in every seat; puzzles for
    one player have none. Which player the agent is follows from the seed. `turns` ends the episode, without reward,
    after so many actions of all players, where the game has not ended before. A game of several pays 1, -1 or what it
    says in between; a puzzle pays 1 when it is solved, else 0, or with `partial` the fraction that was solved.
    `choices` lists the possible actions, by trying all on copies. Some puzzles have an expert policy; where a win is
    few actions away, a search finds it.

    The splits differ in their seeds; a frozen lake, of which there are a few hundred, belongs to one of them by its own
    hash. Of TowerOfHanoi and PegJump there is one puzzle.
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
        return make_tasks_from_fields("textarena", self, split)

    def make(self, task: Task) -> ThreadedEnv:
        config = family_of_task(self, task)
        kind = GAMES[config.game]
        require_module("textarena", "sojourn-worlds[textarena]", "textarena")  # says at once that it is missing
        names, policy_seat = _names(kind.players), ""
        if config.opponent == "random" or kind.players == 1:
            policy_seat = random.Random(f"textarena {task.seed}").choice(names)
        others = {name: scripted for name in names if name != policy_seat} if policy_seat else {}
        has_expert = bool(policy_seat) and (kind.expert is not None or kind.expert_by_search)

        def make_env() -> TurnBasedEnv:
            match = Match(config.game, task.seed, config.turns, names, policy_seat, config.partial)
            return TurnBasedEnv(match, others, policy_seat=policy_seat, choices=config.choices, has_expert=has_expert)

        return self._env_threads.make(make_env, {"fork", "state_key"} | ({"expert"} if has_expert else set()))

    @cached_property
    def _env_threads(self) -> EnvThreads:
        """Returns the pool with its one thread: pure Python code would only slow itself down on several."""
        return EnvThreads(1, "textarena")


def _names(players: int) -> tuple[str, ...]:
    return tuple(f"player{number}" for number in range(players))
