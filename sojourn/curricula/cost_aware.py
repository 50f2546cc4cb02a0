"""Tasks by what a base curriculum expects of them for each token that they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.fields import Range
from sojourn.curricula.by_label import OverBase
from sojourn.curricula.task_history import Array, TaskHistory


@dataclass(frozen=True, kw_only=True)
class CostAware(OverBase):
    """Weighs each task as `base` does, divided by the tokens that a play of it is expected to sample, to the `power`:
    so Graves et al. 2017 (arXiv:1704.03003) divide learning progress by the time that a sample takes.

    A long play of a task of medium difficulty costs as much as several short ones, and steps are often compared or
    paid by tokens. What a play costs is the mean of the task's own plays and of a first guess, which counts as `prior`
    episodes: what its features say (its world, its tags, and the numbers of its `data`), by a ridge regression of the
    logarithms over the tasks that were played. Nothing is divided until some were. The split, the pool and the uniform
    fraction are those of `base`, a curriculum that weighs tasks.
    """

    power: Annotated[float, Range(0)] = 1.0
    prior: Annotated[float, Range(above=0)] = 4.0

    def weights(self, history: TaskHistory) -> Array:
        return np.nan_to_num(self.base.weights(history)) / self.cost(history) ** self.power

    def cost(self, history: TaskHistory) -> Array:
        """Returns the number of tokens that a play of each task is expected to sample, at least 1; 1 everywhere where
        none was played: (n,)."""
        seen = history.counted
        if not seen.any():
            return np.ones(history.count)
        episodes, tokens = history.of.episodes, history.of.tokens
        logs = np.log(np.maximum(tokens[seen] / episodes[seen], 1.0))
        features = history.features
        known = features[seen] * episodes[seen, None]
        ridge = np.eye(features.shape[1])
        slopes = np.linalg.solve(features[seen].T @ known + ridge, known.T @ (logs - logs.mean()))
        guess = np.exp(logs.mean() + features @ slopes)
        return np.maximum((tokens + self.prior * guess) / (episodes + self.prior), 1.0)
