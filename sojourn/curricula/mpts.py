"""Tasks by a difficulty that is predicted from few plays and from what tasks have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.config.unused import refuse_unused
from sojourn.curricula.task_history import Array, TaskHistory
from sojourn.curricula.weighted import WeightedCurriculum, best_of
from sojourn.types import Task


class Belief(NamedTuple):
    """Holds what is believed of the success rate of each task: the mean and the standard deviation, (n,) each."""

    mean: Array
    deviation: Array


@dataclass(frozen=True, kw_only=True)
class MPTS:
    """Model predictive task sampling (Wang et al. 2025, arXiv:2501.11039): a posterior over the difficulty of every
    task, from the plays of some, says which are worth being played.

    Each slot plays, of `candidates` random tasks, the one with the greatest sum of its value and `curiosity` times the
    standard deviation of its rate. With `aim = "hard"` the value is the expected failure rate, as in the paper, whose
    policies must be robust; with "target" it is how near the expected success rate is to `target`, where groups differ.

    The authors' model is a variational autoencoder of task parameters, trained on each batch from the last posterior.
    Here it is a Bayesian linear regression, exact and without training: a task's rate is 1/2, plus what its features
    say (its world, its tags, and the numbers of its `data`; weights of standard deviation `shared`), plus something of
    its own (standard deviation `own`), seen through its last 8 groups, of which each older one counts `decay` times as
    much. The pool are the first `max_tasks` tasks of the split, which are all made when the run begins; a fraction
    `uniform` of the draws takes any.
    """

    split: Annotated[str, NONBLANK] = "train"
    max_tasks: Annotated[int, Range(1, 65536)] = 1024
    uniform: Annotated[float, Range(0, 1)] = 0.0
    aim: Literal["target", "hard"] = "target"
    target: Annotated[float, Range(0, 1)] = 0.5
    curiosity: Annotated[float, Range(0)] = 0.5
    candidates: Annotated[int, Range(1)] = 8
    shared: Annotated[float, Range(above=0)] = 0.25
    own: Annotated[float, Range(above=0)] = 0.15
    decay: Annotated[float, Range(0, 1)] = 0.7

    def __post_init__(self) -> None:
        if self.aim == "hard":
            refuse_unused(self, ["target"], 'with aim = "hard", which has none')

    def bind(self, tasks: Sequence[Task], seed: int) -> WeightedCurriculum:
        return WeightedCurriculum(self, tasks, seed)

    def weights(self, history: TaskHistory) -> Array:
        mean, deviation = self.belief(history)
        value = 1 - mean if self.aim == "hard" else -np.abs(mean - self.target)
        return best_of(value + self.curiosity * deviation, self.candidates)

    def predicted(self, history: TaskHistory) -> Array:
        return np.clip(self.belief(history).mean, 0, 1)

    def belief(self, history: TaskHistory) -> Belief:
        wins, losses = history.posterior(0.0, self.decay)
        episodes, features = wins + losses, history.features
        seen = episodes > 0
        rates = np.divide(wins, episodes, out=np.full(history.count, 0.5), where=seen)
        noise = 0.25 / episodes[seen] + self.own**2  # variance of a rate that was seen, given what features say
        scaled = features[seen] / noise[:, None] * history.counted[seen, None]
        covariance = np.linalg.inv(np.eye(features.shape[1]) / self.shared**2 + features[seen].T @ scaled)
        expected = 0.5 + features @ (covariance @ (scaled.T @ (rates[seen] - 0.5)))
        trust = np.zeros(history.count)  # how far a task's own plays count against what its features say
        trust[seen] = self.own**2 / noise
        variance = ((features @ covariance) * features).sum(1) * (1 - trust) ** 2 + self.own**2 * (1 - trust)
        return Belief((1 - trust) * expected + trust * rates, np.sqrt(variance))
