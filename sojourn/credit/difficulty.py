"""Another estimator's advantages, by how hard the task is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from sojourn.config.registry import Kind
from sojourn.credit.grpo import GRPO
from sojourn.credit.wrapped import Wrapped
from sojourn.types import Credit, Group, Score, Streams


def _plain() -> GRPO:
    return GRPO(deviation=False)


@dataclass(frozen=True, kw_only=True)
class Difficulty(Wrapped):
    """Another estimator's advantages times the task's difficulty, over the step's mean difficulty (after the
    difficulty-aware scaling of GUI-G1: Zhou et al. 2025, arXiv:2505.15810).

    Difficulty is the number `by` of `Task.data`: in the paper it grows as the box to be hit gets smaller. Without one,
    it is the share of the group's trajectories that failed, which is not the paper's. It goes with
    `aggregate.by = "constant"`.
    """

    base: Annotated[Any, Kind("estimator")] = field(default_factory=_plain)
    by: str = ""

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        credit = self.base(groups, scores, streams)
        hard = np.array([self._of(group) for group in groups])
        mean = float(hard.mean()) if len(hard) else 0.0
        weights = hard / mean if mean > 0 else np.ones_like(hard)
        return [
            [replace(c, tokens=tuple((turn * weight).astype(np.float32) for turn in c.tokens)) for c in some]
            for some, weight in zip(credit, weights, strict=True)
        ]

    def _of(self, group: Group) -> float:
        if self.by and self.by not in group.task.data:
            raise ValueError(f"by = '{self.by}': the task of slot {group.slot} has no such number in its data")
        if self.by:
            return float(group.task.data[self.by])
        return 1 - float(np.mean([t.success for t in group.trajectories])) if group.trajectories else 0.0
