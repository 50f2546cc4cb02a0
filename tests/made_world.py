"""A world whose outcomes are certain whatever is said, and the real renderer, runner and rewards to play it with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from made import chatml as renderer

from sojourn.curricula.cycle import Cycle
from sojourn.models.spec import Sampling
from sojourn.rewards.native import Native
from sojourn.rewards.reward_cache import RewardCache
from sojourn.rollout.runner import Rollout, Runner
from sojourn.sources.context import StageContext
from sojourn.sources.play_abilities import PlayAbilities
from sojourn.sources.slots import Slots
from sojourn.tasks import Generated
from sojourn.timeline import Timeline
from sojourn.train.assemble import Components
from sojourn.train.recipe import Recipe
from sojourn.train.seating import Seating, Seats
from sojourn.types import (
    Message,
    Observation,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Step,
    Stop,
    Task,
    Trajectory,
    Versions,
)


@dataclass(frozen=True, kw_only=True)
class Odd:
    """One turn. The plays of a task whose seed is odd pay 1, 0, 1, 0 ...; those of an even one pay 0.

    `paying = false` pays 0 always. `mute` has no expert, `lost` one that fails. `plays` counts them by task seed.
    """

    count: int = 100
    paying: bool = True
    mute: bool = False
    lost: bool = False
    plays: Counter[int] = field(default_factory=Counter, init=False, compare=False)

    def tasks(self, split: str):
        first = 0 if split == "train" else 1_000
        return Generated(lambda index: Task("odd", {}, first + index, split), self.count)

    def make(self, task: Task) -> Play:
        before = self.plays[task.seed]
        self.plays[task.seed] += 1
        kind = Play if self.mute else PlayWithExpert
        return kind(self, float(self.paying and task.seed % 2 == 1 and before % 2 == 0))


@dataclass
class Play:
    family: Odd
    pays: float

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, "Say yes."),), system=(Message(Role.SYSTEM, "Play."),))

    async def step(self, agent: str, action: Message) -> Step:
        return Step(None, {agent: self.pays}, done=True, success=self.pays > 0)

    async def close(self) -> None: ...


class PlayWithExpert(Play):
    def expert(self) -> str:
        if self.family.lost:
            raise RuntimeError("the expert lost its way")
        return "yes"


@dataclass
class Says:
    """In the engine's place: says the same each time, and remembers what it was asked."""

    text: str = "yes"
    asked: list[SamplingParams] = field(default_factory=list)

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        self.asked.append(params)
        tokens = np.asarray(renderer().encode_reply(Message(Role.ASSISTANT, self.text)), dtype=np.int64)
        return Sample(tokens, np.full(len(tokens), -0.5, dtype=np.float32), Versions(0, 0), Stop.END)

    async def score(self, prompt: Prompt) -> Any:
        raise NotImplementedError


def components(world: Any, sampler: Any = None) -> Components:
    """Everything but a trainer."""
    recipe = Recipe(name="made", env=world, stages=(), sampling=Sampling(max_tokens=8))
    said = sampler or Says()
    timeline = Timeline()
    runner = Runner(Rollout(), world, recipe.agent, renderer(), said, 256, 0, timeline=timeline)
    curriculum = Cycle().bind(world.tasks("train"), 0)
    return Components(
        recipe=recipe,
        renderer=renderer(),
        trainer=cast(Any, None),
        trainers={},
        sampler=said,
        runner=runner,
        rewards=RewardCache(Native()),
        curriculum=curriculum,
        seating=Seating(Seats(), 0),
        timeline=timeline,
    )


def stage_of(components: Components, name: str) -> StageContext:
    limits = components.recipe.rollout.limits
    return StageContext(
        name=name,
        groups=Slots(),
        env=components.recipe.env,
        plays=PlayAbilities(components.recipe.env, limits),
        split="train",
        agent=components.recipe.agent,
        limits=limits,
        params=components.params,
        estimator=cast(Any, None),
        losses=(),
    )


def seeds(groups: Any) -> list[int]:
    return [group.task.seed for group in groups]


def sampled(trajectory: Trajectory) -> list[list[int]]:
    return [turn.sample.tokens.tolist() for turn in trajectory.turns]
