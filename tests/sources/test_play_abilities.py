"""What environments can do is asked of the first of each kind of tasks, once however many stages ask."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from sojourn.credit.constant import Constant
from sojourn.credit.gigpo import GiGPO
from sojourn.envs.toy import Toy
from sojourn.losses.nll import NLL
from sojourn.losses.ppo import PPO
from sojourn.protocols import Env
from sojourn.sources.experts import Experts
from sojourn.train.group_checks import check_groups
from sojourn.train.recipe import Recipe, Stage
from sojourn.types import Task


@dataclass(frozen=True, kw_only=True)
class Counted(Toy):
    made: list[Task] = field(default_factory=list)

    def make(self, task: Task) -> Env:
        self.made.append(task)
        return super().make(task)


def test_an_environment_is_made_once_for_all_stages_and_abilities() -> None:
    world = Counted()
    stages = (
        Stage(name="warmup", groups=Experts(), estimator=Constant(), losses=(NLL(),)),
        Stage(name="rl", estimator=GiGPO(), losses=(PPO(),)),
        Stage(name="more", estimator=GiGPO(), losses=(PPO(),)),
    )
    asyncio.run(check_groups(Recipe(name="counted", env=world, stages=stages)))
    assert len(world.made) == len({task.tags for task in world.made}) >= 1
