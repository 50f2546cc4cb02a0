"""Tasks that fail most come first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.curricula.task_history import Array, TaskHistory
from sojourn.curricula.weighted import WeightedCurriculum
from sojourn.types import Task


@dataclass(frozen=True, kw_only=True)
class FailuresFirst:
    """Draws tasks by how often they fail: the weight is the failure rate that is expected of the task, to the `power`.

    The rate has a Beta(`prior`, `prior`) distribution, updated by the task's last groups, of which each older one
    counts `decay` times as much. Tasks without any success in `give_up` episodes (0: never) are left alone while there
    are others, as groups that always fail teach a group-relative estimator nothing. A fraction `uniform` of the draws
    takes all tasks alike that have a weight, which are among the first `max_tasks` of the split.
    """

    split: Annotated[str, NONBLANK] = "train"
    max_tasks: Annotated[int, Range(1, 65536)] = 4096
    uniform: Annotated[float, Range(0, 1)] = 0.1
    power: Annotated[float, Range(above=0)] = 1.0
    give_up: Annotated[int, Range(0)] = 64
    prior: Annotated[float, Range(above=0)] = 1.0
    decay: Annotated[float, Range(0, 1)] = 0.7

    def bind(self, tasks: Sequence[Task], seed: int) -> WeightedCurriculum:
        return WeightedCurriculum(self, tasks, seed)

    def weights(self, history: TaskHistory) -> Array:
        hopeless = (history.of.successes == 0) & (history.of.episodes >= self.give_up) & (self.give_up > 0)
        return np.where(hopeless, 0.0, (1 - self.predicted(history)) ** self.power)

    def predicted(self, history: TaskHistory) -> Array:
        return history.expected(self.prior, self.decay)
