"""REINFORCE with a batch-wide baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from sojourn.config.registry import Range
from sojourn.credit.relative import returns
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class Reinforce:
    """Discounted return-to-go of each turn, minus the mean return of the step's trajectories (Williams 1992).

    Williams, "Simple statistical gradient-following algorithms", sections 4-6 (reinforcement baseline). With
    `discount = 1` and `baseline = "none"` it is the bare policy gradient. Deviation: the batch mean contains the
    trajectory itself, which scales the gradient by (M - 1) / M for M trajectories of a step.
    """

    discount: Annotated[float, Range(0, 1)] = 1.0
    baseline: Literal["batch", "none"] = "batch"

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        found = [[returns(score, self.discount) for score in judged] for judged in scores]
        starts = [r[0] for judged in found for r in judged if len(r)]
        baseline = float(np.mean(starts)) if self.baseline == "batch" and starts else 0.0
        return [
            [Credit.per_turn(t, r - baseline) for t, r in zip(group.trajectories, judged, strict=True)]
            for group, judged in zip(groups, found, strict=True)
        ]
