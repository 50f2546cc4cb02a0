"""Tasks whose difficulty, drawn from what is believed of it, is nearest to a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.config.fields import NONBLANK, Range
from sojourn.curricula.task_history import Array, TaskHistory
from sojourn.curricula.weighted import WeightedCurriculum, best_of
from sojourn.types import Task


@dataclass(frozen=True, kw_only=True)
class MoPPS:
    """Model predictive prompt selection (Qu et al. 2025, arXiv:2507.04632): a rate is drawn from the posterior of
    each task's success rate, and tasks whose draw is nearest to `target` are played (Thompson sampling).

    The posterior is Beta(`prior`, `prior`) without plays; each older group counts `decay` times as much as the next.
    The authors draw a number of random candidates for each prompt of a batch, and take the best of all; here each slot
    plays the best of `candidates` random tasks, with new draws in each step. Only the last 8 groups of a task count.
    A fraction `uniform` of the draws takes any of the first `max_tasks` tasks of the split.
    """

    split: Annotated[str, NONBLANK] = "train"
    max_tasks: Annotated[int, Range(1, 65536)] = 4096
    uniform: Annotated[float, Range(0, 1)] = 0.0
    target: Annotated[float, Range(0, 1)] = 0.5
    candidates: Annotated[int, Range(1)] = 8
    prior: Annotated[float, Range(above=0)] = 1.0
    decay: Annotated[float, Range(0, 1)] = 0.5

    def bind(self, tasks: Sequence[Task], seed: int) -> WeightedCurriculum:
        return WeightedCurriculum(self, tasks, seed)

    def weights(self, history: TaskHistory) -> Array:
        drawn = history.rng().beta(*history.posterior(self.prior, self.decay))
        return best_of(-((drawn - self.target) ** 2), self.candidates)

    def predicted(self, history: TaskHistory) -> Array:
        return history.expected(self.prior, self.decay)
