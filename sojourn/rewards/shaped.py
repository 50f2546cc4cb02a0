"""Potential-based reward shaping."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from sojourn.composite import HasBases
from sojourn.config.fields import NONBLANK, Kind, Range
from sojourn.protocols import Reward
from sojourn.rewards.native import Native
from sojourn.types import Group, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class Shaped(HasBases):
    """Another reward plus the potential-based shaping discount Phi(s') - Phi(s) for each turn, which leaves the optimal
    policy unchanged (Ng, Harada and Russell 1999, "Policy invariance under reward transformations", theorem 1).

    Phi is `scale` times the number `info_key` of a turn's `Turn.info`; a turn without it keeps the last value, and
    before the first one the value is `start`. Phi is 0 where the episode has ended, so that the return changes by
    -Phi(s) alone; a truncated trajectory keeps its last Phi. `discount` must be the estimator's. With one return for a
    whole trajectory and discount 1 shaping has no use: it is for estimators that use the rewards of turns.
    """

    base: Annotated[Reward, Kind("reward")] = field(default_factory=Native)
    info_key: Annotated[str, NONBLANK] = "progress"
    scale: float = 1.0
    start: float = 0.0
    discount: Annotated[float, Range(0, 1)] = 1.0

    async def __call__(self, group: Group) -> list[Score]:
        scores = await self.base(group)
        return [self._shaped(t, score) for t, score in zip(group.trajectories, scores, strict=True)]

    def _shaped(self, trajectory: Trajectory, score: Score) -> Score:
        values = [self.start]
        for turn in trajectory.turns:
            values.append(turn.info.get(self.info_key, values[-1]))
        if not trajectory.ending.truncated:
            values[-1] = 0.0
        potential = self.scale * np.array(values)
        shaping = self.discount * potential[1:] - potential[:-1]
        turns = (score.turns + shaping).astype(np.float32)
        parts = {**score.parts, "shaping": float(shaping.sum())}
        return replace(score, turns=turns, parts=parts, outcome=score.result)
