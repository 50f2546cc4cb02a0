"""Another reward, less a penalty for saying too much."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from sojourn.composite import HasBases
from sojourn.config.registry import Kind, Range
from sojourn.rewards.native import Native
from sojourn.types import Group, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class Overlong(HasBases):
    """Another reward, less up to `penalty` at the last turn of a trajectory that samples more than `most` - `margin`
    tokens: in proportion within the margin, all of it beyond `most` (soft overlong punishment of DAPO: Yu et al. 2025,
    arXiv:2503.14476, eq. 13, whose answers have one turn)."""

    base: Annotated[Any, Kind("reward")] = field(default_factory=Native)
    max_tokens: Annotated[int, Range(1)] = 256
    buffer_tokens: Annotated[int, Range(1)] = 64
    penalty: Annotated[float, Range(0)] = 1.0

    def __post_init__(self) -> None:
        if self.buffer_tokens > self.max_tokens:
            raise ValueError(
                f"buffer_tokens = {self.buffer_tokens} with max_tokens = {self.max_tokens}: "
                "expected buffer_tokens <= max_tokens"
            )

    async def __call__(self, group: Group) -> list[Score]:
        judged = await self.base(group)
        return [self._less(t, score) for t, score in zip(group.trajectories, judged, strict=True)]

    def _less(self, trajectory: Trajectory, score: Score) -> Score:
        said = sum(len(turn.sample.tokens) for turn in trajectory.turns)
        cost = self.penalty * float(np.clip((said - self.max_tokens + self.buffer_tokens) / self.buffer_tokens, 0, 1))
        turns = score.turns.copy()
        turns[-1:] -= np.float32(cost)
        return replace(score, turns=turns, parts={**score.parts, "overlong": cost}, outcome=score.result)
