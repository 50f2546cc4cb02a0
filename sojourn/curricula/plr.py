"""Prioritised level replay: tasks come again by what could still be learned of them, and by how long they have not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.config.unused import refuse_unused
from sojourn.curricula.task_history import Array, TaskHistory
from sojourn.curricula.weighted import WeightedCurriculum, normalised, with_new
from sojourn.types import Task


@dataclass(frozen=True, kw_only=True)
class PLR:
    """Prioritised level replay (Jiang, Grefenstette and Rocktäschel 2021, arXiv:2010.03934): draws tasks that were
    played by a score of what could still be learned of them, mixed with how long they were not played.

    Of the draws of such tasks, a fraction 1 - `staleness` is in proportion to h^(1 / `temperature`), where h is 1 over
    the rank of the task's score with `by = "rank"`, or the score itself with "proportional"; the rest is in proportion
    to the number of steps since the task was played. `score` is "l1", the mean distance of the rewards of the task's
    newest group from their mean, or "max_mc", the greatest reward of the task so far less the mean of its newest group
    (Jiang et al. 2021, "Replay-guided adversarial environment design", arXiv:2110.02439). Tasks that were never played
    take as large a fraction of the draws as they are of all tasks with `schedule = "proportionate"`, and the fraction
    `new` with "fixed". A fraction `uniform` of the draws takes any of the first `max_tasks` tasks of the split.

    It differs where the authors use a critic: their L1 is that of advantages by GAE, and their MaxMC is less the
    critic's values. The authors draw one episode at a time at a temperature of 0.1; here a step draws several groups by
    the same scores, so that the default is higher. Equal scores share their mean rank.
    """

    split: Annotated[str, NONBLANK] = "train"
    max_tasks: Annotated[int, Range(1, 65536)] = 4096
    uniform: Annotated[float, Range(0, 1)] = 0.0
    score: Literal["l1", "max_mc"] = "l1"
    by: Literal["rank", "proportional"] = "rank"
    temperature: Annotated[float, Range(above=0)] = 1.0
    staleness: Annotated[float, Range(0, 1)] = 0.1
    schedule: Literal["proportionate", "fixed"] = "proportionate"
    new: Annotated[float, Range(0, 1)] = 0.5

    def __post_init__(self) -> None:
        if self.schedule == "proportionate":
            refuse_unused(self, ["new"], 'with schedule = "proportionate", which takes the fraction that is new')

    def bind(self, tasks: Sequence[Task], seed: int) -> WeightedCurriculum:
        return WeightedCurriculum(self, tasks, seed)

    def weights(self, history: TaskHistory) -> Array:
        seen = history.seen
        score = history.of.spread if self.score == "l1" else history.of.best - history.of.last_reward
        priority = 1 / ranks(score[seen]) if self.by == "rank" else score[seen]
        again = np.zeros(history.count)
        again[seen] = (1 - self.staleness) * normalised(priority ** (1 / self.temperature))
        again[seen] += self.staleness * normalised(history.age[seen] - 1)
        return with_new(again, seen, float(np.mean(~seen)) if self.schedule == "proportionate" else self.new)


def ranks(scores: Array) -> Array:
    """Returns the rank of each score, 1 for the greatest; equal ones share their mean rank: (n,)."""
    ordered = np.sort(-scores)
    before, upto = (np.searchsorted(ordered, -scores, side=side) for side in ("left", "right"))
    return (before + upto + 1) / 2
