"""Episodes of mixed quality, by which judges are measured: an expert whose actions are now and then random ones."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.fields import Range
from sojourn.protocols import Env
from sojourn.seeds import seed_of
from sojourn.sources.context import SourceContext, StageContext
from sojourn.sources.experts import ExpertSampler, require_an_expert
from sojourn.types import FloatArray, Group, Prompt, Sample, SamplingParams, Stop, Versions


@dataclass(frozen=True, kw_only=True)
class NoisyExperts:
    """`width` groups of `size` plays per step, in which the world's scripted expert acts, or with a probability that is
    drawn for each play from `noise` a random one of the actions that the world lists.

    All tokens have the log-probability 0: they are for reward models and imitation.
    """

    width: Annotated[int, Range(1)] = 4
    size: Annotated[int, Range(1)] = 4
    noise: tuple[float, ...] = (0.0, 0.2, 0.5, 1.0)

    live = False
    origin = "noisy_experts"
    env_needs = frozenset({"expert"})

    def tasks(self, steps: int) -> int:
        return self.width * steps

    async def check(self, stage: StageContext) -> None:
        await require_an_expert(stage, "mixes an expert's actions with others")

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> LiveNoisyExperts:
        return LiveNoisyExperts(self, context, stage, first)


@dataclass
class LiveNoisyExperts:
    """Plays the groups of one stage."""

    config: NoisyExperts
    context: SourceContext
    stage: str
    first: int = 0

    async def take(self, step: int) -> list[Group]:
        width = self.config.width
        return await asyncio.gather(*(self._play(slot) for slot in range(step * width, (step + 1) * width)))

    async def close(self) -> None:
        """Does nothing: nothing is open."""

    async def _play(self, slot: int) -> Group:
        runner, task = self.context.runner, self.context.curriculum.draw(self.first + slot)

        def sampler_for(env: Env, label: str) -> NoisyExpert:
            rng = np.random.default_rng(seed_of(runner.seed, label, task.id))
            expert = ExpertSampler(env, runner.renderer, runner.agent)
            return NoisyExpert(expert, float(rng.choice(self.config.noise)), rng)

        label = f"{self.stage}/{slot}"
        return await runner.play_group(
            task, slot, self.config.size, self.context.params, label, sampler_for=sampler_for, blame=False
        )


@dataclass
class NoisyExpert:
    """Samples a listed action at random with the probability `noise`, and else takes the expert's."""

    expert: ExpertSampler
    noise: float
    rng: np.random.Generator

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        if not params.choices or self.rng.uniform() >= self.noise:
            return await self.expert.sample(prompt, params)
        tokens = np.asarray(params.choices[int(self.rng.integers(len(params.choices)))], dtype=np.int64)
        return Sample(tokens, np.zeros(len(tokens), dtype=np.float32), Versions(-1, -1), Stop.END)

    async def score(self, prompt: Prompt) -> FloatArray:
        raise NotImplementedError("a scripted policy has no probabilities")

    async def close(self) -> None:
        """Does nothing: nothing is open."""
