"""Another reward with a penalty for long trajectories."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from sojourn.composite import HasBases
from sojourn.config.fields import Kind, Range
from sojourn.protocols import Reward
from sojourn.rewards.native import Native
from sojourn.types import Group, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class Overlong(HasBases):
    """Another reward, minus a penalty at the last turn of a trajectory with more than `max_tokens` - `buffer_tokens`
    sampled tokens, which grows linearly over the buffer up to `penalty` at `max_tokens` and beyond (soft overlong
    punishment of DAPO: Yu et al. 2025, arXiv:2503.14476, eq. 13, whose answers have one turn).

    `max_tokens` is the paper's L_max and `buffer_tokens` its L_cache.
    """

    base: Annotated[Reward, Kind("reward")] = field(default_factory=Native)
    max_tokens: Annotated[int, Range(1)] = 256
    buffer_tokens: Annotated[int, Range(1)] = 64
    penalty: Annotated[float, Range(0)] = 1.0

    def __post_init__(self) -> None:
        if self.buffer_tokens > self.max_tokens:
            raise ValueError(
                f"buffer_tokens = {self.buffer_tokens} with max_tokens = {self.max_tokens}: expected "
                "buffer_tokens <= max_tokens"
            )

    async def __call__(self, group: Group) -> list[Score]:
        scores = await self.base(group)
        return [self._penalised(t, score) for t, score in zip(group.trajectories, scores, strict=True)]

    def _penalised(self, trajectory: Trajectory, score: Score) -> Score:
        length = sum(len(turn.sample.tokens) for turn in trajectory.turns)
        excess = (length - self.max_tokens + self.buffer_tokens) / self.buffer_tokens
        penalty = self.penalty * float(np.clip(excess, 0, 1))
        turns = score.turns.copy()
        turns[-1:] -= np.float32(penalty)
        return replace(score, turns=turns, parts={**score.parts, "overlong": penalty}, outcome=score.result)
