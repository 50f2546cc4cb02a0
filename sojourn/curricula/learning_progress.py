"""Tasks whose success rate changes most, whether it rises or falls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.curricula.task_history import RECENT, Array, TaskHistory
from sojourn.curricula.weighted import WeightedCurriculum, with_new
from sojourn.types import Task


@dataclass(frozen=True, kw_only=True)
class LearningProgress:
    """Draws tasks by learning progress in either direction (Kanitscheider et al. 2021, arXiv:2106.14876): how far a
    fast average of the task's success rate is from a slow one.

    The fast average is an exponential one of the success rates of the task's last 8 groups, in which the newest counts
    `rate`; the slow average is that of the fast one. Both are transformed by p (1 - t) / (p + t (1 - 2 p)), t =
    `threshold`, which magnifies low rates. Of the tasks with any progress, each has the logistic function of its
    standardised progress as its weight; the others have none, but for tasks of which fewer than two groups were played:
    these share the fraction `new` of the draws. A fraction `uniform` of the draws takes all tasks with a weight alike,
    which are among the first `max_tasks` of the split.

    The authors evaluate all tasks at intervals; here the rates are those of what was played anyway.
    """

    unverified: ClassVar[str] = "its abstract and two codes by others (Syllabus, and OMNI of Zhang et al. 2023)"

    split: Annotated[str, NONBLANK] = "train"
    max_tasks: Annotated[int, Range(1, 65536)] = 1024
    uniform: Annotated[float, Range(0, 1)] = 0.0
    rate: Annotated[float, Range(0, 1)] = 0.3
    threshold: Annotated[float, Range(above=0, below=1)] = 0.1
    new: Annotated[float, Range(0, 1)] = 0.2

    def bind(self, tasks: Sequence[Task], seed: int) -> WeightedCurriculum:
        return WeightedCurriculum(self, tasks, seed)

    def weights(self, history: TaskHistory) -> Array:
        known = np.isfinite(history.of.recent).sum(1) > 1
        progress = np.where(known, self.progress(history), 0.0)
        moving = progress > 0 if (progress > 0).any() else known
        weights = np.zeros(history.count)
        if moving.any():
            spread = progress[moving].std() or 1.0
            weights[moving] = 1 / (1 + np.exp(-(progress[moving] - progress[moving].mean()) / spread))
        return with_new(weights, known, self.new)

    def progress(self, history: TaskHistory) -> Array:
        """Returns the distance of the two averages of each task, NaN where no group was played: (n,)."""
        fast = slow = np.full(history.count, np.nan)
        for group in range(RECENT):
            rates = history.of.recent[:, group]
            fast = np.where(np.isfinite(fast), fast + self.rate * (rates - fast), rates)
            slow = np.where(np.isfinite(slow), slow + self.rate * (fast - slow), fast)
        return np.abs(self._magnified(fast) - self._magnified(slow))

    def _magnified(self, rates: Array) -> Array:
        return rates * (1 - self.threshold) / (rates + self.threshold * (1 - 2 * rates))
