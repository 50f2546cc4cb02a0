"""Another reward, shaped by a potential."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from sojourn.composite import HasBases
from sojourn.config.registry import SOME, Kind, Range
from sojourn.rewards.native import Native
from sojourn.types import Group, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class Shaped(HasBases):
    """Another reward plus discount Phi(s') - Phi(s) for each turn, which leaves the best policy what it is (Ng, Harada
    and Russell 1999, "Policy invariance under reward transformations", theorem 1).

    Phi is `scale` times the number `by` that a turn leaves in `Turn.info`, where it leaves none the last that was left,
    and `start` before the first. It is 0 where the world has ended, so that a return is what it was, less Phi(s); a
    truncated trajectory keeps its own. `discount` must be the estimator's. Under one return for a whole trajectory,
    with discount 1, nothing is gained: it is for estimators that look at turns.
    """

    base: Annotated[Any, Kind("reward")] = field(default_factory=Native)
    info_key: Annotated[str, SOME] = "progress"
    scale: float = 1.0
    start: float = 0.0
    discount: Annotated[float, Range(0, 1)] = 1.0

    async def __call__(self, group: Group) -> list[Score]:
        judged = await self.base(group)
        return [self._plus(t, score) for t, score in zip(group.trajectories, judged, strict=True)]

    def _plus(self, trajectory: Trajectory, score: Score) -> Score:
        known = [self.start]
        for turn in trajectory.turns:
            known.append(turn.info.get(self.info_key, known[-1]))
        if not trajectory.ending.truncated:
            known[-1] = 0.0
        potential = self.scale * np.array(known)
        gain = self.discount * potential[1:] - potential[:-1]
        shaped = (score.turns + gain).astype(np.float32)
        parts = {**score.parts, "shaping": float(gain.sum())}
        return replace(score, turns=shaped, parts=parts, outcome=score.result)
