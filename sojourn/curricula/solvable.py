"""Tasks that the policy was seen to solve sometimes; the others are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.curricula.task_history import Array, TaskHistory
from sojourn.curricula.weighted import WeightedCurriculum
from sojourn.types import Task

LEFT_OUT = 1e-12  # the weight of a task that is only drawn by `uniform`


@dataclass(frozen=True, kw_only=True)
class Solvable:
    """Plays every task for at least `trials` episodes, then those alone whose success rate is above `low` and at most
    `high`: the task selection by baseline performance of ARPO (Lu et al. 2025, arXiv:2505.16282).

    The authors play the baseline model before training, and keep the tasks for good. Here the trials are trained on
    like any other group, and the rate is that of all episodes so far, so that a task which was out of reach may come
    back by its share `uniform` of the draws. Where no task is left, all of the first `max_tasks` are drawn alike.
    """

    unverified: ClassVar[str] = "the paper's abstract was read, not how many plays it takes and which tasks it keeps"

    split: Annotated[str, NONBLANK] = "train"
    max_tasks: Annotated[int, Range(1, 65536)] = 256
    uniform: Annotated[float, Range(0, 1)] = 0.05
    trials: Annotated[int, Range(1)] = 8
    low: Annotated[float, Range(0, below=1)] = 0.0
    high: Annotated[float, Range(0, 1)] = 1.0

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low:g} and high = {self.high:g}: no rate lies between them; lower low")

    def bind(self, tasks: Sequence[Task], seed: int) -> WeightedCurriculum:
        return WeightedCurriculum(self, tasks, seed)

    def weights(self, history: TaskHistory) -> Array:
        untried = history.of.episodes < self.trials
        if untried.any():
            return untried.astype(float)
        rate = history.success
        return np.where((rate > self.low) & (rate <= self.high), 1.0, LEFT_OUT)
