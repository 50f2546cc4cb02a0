"""Tasks that the policy solves sometimes: those of which a group is most likely to differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.config.fields import NONBLANK, Range
from sojourn.curricula.task_history import Array, TaskHistory
from sojourn.curricula.weighted import WeightedCurriculum
from sojourn.types import Task


@dataclass(frozen=True, kw_only=True)
class Learnability:
    """Weighs each task by p (1 - p), where p is its success rate: the learnability of SFL (Rutherford et al. 2024,
    arXiv:2408.15099), which is the variance of success, and greatest where half of the episodes succeed.

    The authors estimate p from fresh plays of many levels every few updates, and draw from the best of them; here p is
    estimated from what was played anyway: a Beta(`prior`, `prior`) distribution of each task's rate, updated by its
    last groups, of which each older one counts `decay` times as much. The weight is the expectation of p (1 - p), so
    that tasks which were never played have one, too. A fraction `uniform` of the draws takes any of the first
    `max_tasks` tasks of the split, which are all that are played.
    """

    split: Annotated[str, NONBLANK] = "train"
    max_tasks: Annotated[int, Range(1, 65536)] = 4096
    uniform: Annotated[float, Range(0, 1)] = 0.1
    prior: Annotated[float, Range(above=0)] = 1.0
    decay: Annotated[float, Range(0, 1)] = 0.7

    def bind(self, tasks: Sequence[Task], seed: int) -> WeightedCurriculum:
        return WeightedCurriculum(self, tasks, seed)

    def weights(self, history: TaskHistory) -> Array:
        wins, losses = history.posterior(self.prior, self.decay)
        total = wins + losses
        return wins * losses / (total * (total + 1))
