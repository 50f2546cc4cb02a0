"""Tasks whose success rate is near a target."""

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
class Near:
    """Draws tasks whose success rate p is near `target`: the weight is exp(-E[(p - target)^2] / 2 w^2), w = `width`.

    The rate has a Beta(`prior`, `prior`) distribution, updated by the task's last groups, of which each older one
    counts `decay` times as much; what is uncertain is therefore further away. Unlike `learnability`, the target may be
    any rate: one above 1/2 keeps tasks until they are solved safely. A fraction `uniform` of the draws takes any of the
    first `max_tasks` tasks of the split.
    """

    split: Annotated[str, NONBLANK] = "train"
    max_tasks: Annotated[int, Range(1, 65536)] = 4096
    uniform: Annotated[float, Range(0, 1)] = 0.1
    target: Annotated[float, Range(0, 1)] = 0.5
    width: Annotated[float, Range(above=0)] = 0.2
    prior: Annotated[float, Range(above=0)] = 1.0
    decay: Annotated[float, Range(0, 1)] = 0.7

    def bind(self, tasks: Sequence[Task], seed: int) -> WeightedCurriculum:
        return WeightedCurriculum(self, tasks, seed)

    def weights(self, history: TaskHistory) -> Array:
        wins, losses = history.posterior(self.prior, self.decay)
        total = wins + losses
        variance = wins * losses / (total**2 * (total + 1))
        distance = variance + (wins / total - self.target) ** 2
        nearest = distance.min(initial=np.inf)  # without it, a small width would have all of them be 0
        return np.exp((nearest - distance) / (2 * self.width**2))

    def predicted(self, history: TaskHistory) -> Array:
        return history.expected(self.prior, self.decay)
