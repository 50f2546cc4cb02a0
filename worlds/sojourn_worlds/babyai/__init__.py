"""BabyAI: missions in rooms with coloured doors, keys, balls and boxes, described in words.

A task is a level's mission. An action is one of six moves and manipulations; an observation is the partial view of 7 by
7 cells in front of the agent, described in words as Carta et al. 2023 (arXiv:2302.02662) do it. The reward is 1 for a
mission that is accomplished, however long it took, unless `discount` asks for the package's own 1 - 0.9 * steps /
limit; the episode ends with the mission, or at the limit of turns.

The levels are those of the minigrid package (Chevalier-Boisvert et al. 2019, arXiv:1810.08272; minigrid: 2023,
arXiv:2306.13831). It differs in the reward, and in that an action that changes nothing (into a wall, picking up
nothing) is refused and takes no turn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.fields import Count, check_fields, check_names
from sojourn.tasks.splits import make_tasks
from sojourn.types import Task
from sojourn_worlds.babyai.levels import LEVELS, enter
from sojourn_worlds.babyai.play import BabyAIPlay

EASY = ("GoToRedBallNoDists", "GoToObj", "GoToLocal", "OpenDoor", "PickupLoc")


@dataclass(frozen=True, kw_only=True)
class BabyAI:
    """Missions such as "go to the red ball" or "put the green key next to the blue box", in rooms seen in part.

    `levels` are names of the package's levels, from GoToRedBallNoDists to BossLevel; a task's seed draws one of them.
    `turns` ends the episode without success (0: after the level's own limit, 64 for most of one room). `discount` pays
    less for a mission the longer it took, as the package does.

    A mission belongs to one split by its own hash: none of the test split is ever seen in training.
    """

    levels: tuple[str, ...] = EASY
    turns: Annotated[int, Range(0, 10_000)] = 0
    discount: bool = False
    choices: bool = False
    train: Count = 100_000
    test: Count = 1_000

    about: ClassVar[About] = About(
        source="BabyAI (Chevalier-Boisvert et al. 2019, arXiv:1810.08272) in minigrid (arXiv:2306.13831)",
        licence="Apache-2.0",
        extra="babyai",
        smallest={"levels": ("GoToRedBallNoDists",), "turns": 30},
    )

    def __post_init__(self) -> None:
        check_fields("babyai", self)
        check_names("babyai", "levels", self.levels, LEVELS)

    def tasks(self, split: str) -> Sequence[Task]:
        return make_tasks("babyai", self, split, lambda seed: self._task(seed, split))

    def _task(self, seed: int, split: str) -> Task:
        level = random.Random(f"babyai {seed}").choice(self.levels)
        data = {"level": level, "turns": self.turns, "discount": self.discount}
        return Task("babyai", data, seed, split, tags=(level,))

    def make(self, task: Task) -> BabyAIPlay:
        world = enter(task.data["level"], task.seed, task.data["turns"])
        return BabyAIPlay(world, task.id, task.data["discount"], self.choices)
