"""Cuts the first turns off a trajectory, and plays recorded turns again: the first ones, or all in another task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sojourn.errors import BudgetError
from sojourn.protocols import Sampler
from sojourn.types import FloatArray, IntArray, Message, Prompt, Sample, SamplingParams, Trajectory, Turn


def segment(trajectory: Trajectory, first: int) -> Trajectory:
    """Returns the turns from `first` on, whose contexts have the exact tokens of those before, as the policy saw them.

    The rewards of the turns before are left out: a return is of what came after.
    """
    turns = [_moved(trajectory, number, first) for number in range(first, len(trajectory.turns))]
    return replace(trajectory, turns=tuple(turns))


def _moved(trajectory: Trajectory, number: int, first: int) -> Turn:
    turn = trajectory.turns[number]
    if turn.parent >= first or turn.parent < 0:
        return replace(turn, parent=max(turn.parent - first, -1))
    return alone(trajectory, number)


def alone(trajectory: Trajectory, number: int) -> Turn:
    """Returns a turn with its whole context, as the root of a new one."""
    turn = trajectory.turns[number]
    images, tools, at = turn.images, turn.tools, turn.parent
    before: list[Message] = []
    while at >= 0:
        parent = trajectory.turns[at]
        images, tools, at = parent.images + images, parent.tools or tools, parent.parent
        before = [*parent.observed, *([parent.message] if parent.message is not None else []), *before]
    return replace(
        turn,
        parent=-1,
        context=trajectory.prompt(number),
        images=images,
        tools=tools,
        context_messages=(*turn.context_messages, *before),
    )


def course(trajectory: Trajectory) -> list[tuple[float, str | None]]:
    """Returns the reward and the world's state of each turn, as far as the world tells it."""
    return [(turn.reward, turn.state) for turn in trajectory.turns]


@dataclass
class PrefixSampler:
    """Returns recorded samples for the first turns of a play, as long as the prompts are those that were recorded, and
    then draws from the engine. `returned` counts them."""

    engine: Sampler
    prompts: Sequence[IntArray]
    samples: Sequence[Sample]
    returned: int = 0
    diverged: bool = False

    @classmethod
    def of(cls, engine: Sampler, trajectory: Trajectory, count: int) -> PrefixSampler:
        """Returns a sampler for a play that begins with the first `count` turns of a trajectory."""
        samples = [turn.sample for turn in trajectory.turns[:count]]
        return cls(engine, [trajectory.prompt(number) for number in range(count)], samples)

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        at = self.returned
        self.diverged |= at == len(self.samples) or not np.array_equal(prompt.tokens, self.prompts[at])
        if self.diverged:
            return await self.engine.sample(prompt, params)
        self.returned += 1
        return self.samples[at]

    async def score(self, prompt: Prompt) -> FloatArray:
        return await self.engine.score(prompt)

    async def close(self) -> None:
        """Does nothing: whoever opened the engine closes it."""


@dataclass
class SampleReplay:
    """Returns recorded samples in their order, whatever the prompts are, in place of an engine.

    The play ends after the last one, and before one that could not have been sampled there: one that is longer than the
    context or the settings allow, or that is not among the choices.
    """

    samples: Sequence[Sample]
    returned: int = 0

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        if self.returned == len(self.samples):
            raise BudgetError("all recorded samples were played")
        sample = self.samples[self.returned]
        if params.choices and tuple(sample.tokens.tolist()) not in params.choices:
            raise BudgetError("what was recorded is not among the choices")
        if not params.choices and len(sample.tokens) > params.max_tokens:
            raise BudgetError(f"what was recorded has {len(sample.tokens)} tokens, of {params.max_tokens} allowed")
        self.returned += 1
        return sample

    async def score(self, prompt: Prompt) -> FloatArray:
        raise NotImplementedError("recorded samples have the log-probabilities of their own prompts alone")

    async def close(self) -> None:
        """Does nothing: nothing is open."""
