"""A bandit whose arms are tags or worlds: those of which most can be learned are drawn most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.curricula.by_label import OverBase, members, shared
from sojourn.curricula.task_history import Array, TaskHistory


@dataclass(frozen=True, kw_only=True)
class Bandit(OverBase):
    """Treats tags ("tag"), worlds ("world") or the values of a key of the tasks' data, which `by` says, as the arms of
    a bandit, and draws those of high learning potential by upper confidence bounds, as PAPRIKA does with its groups of
    tasks (Tajwar et al. 2025, arXiv:2502.17543).

    The potential of an arm is the mean over its tasks' newest groups, in which a group counts `decay` times as much as
    one of a step later. With `gain = "variation"` a group gives the standard deviation of its success over its rate,
    where the rate is at least 1 / (1 + episodes), so that hard tasks that are solved at times count most; with
    "variance", p (1 - p). An arm's bound is its potential plus `explore` times the square root of the logarithm of all
    groups over its own. Shares of the draws are those of `pulls` plays of the bandit one after another, in which each
    adds to the number of groups of its arm alone. The tasks of an arm share it as `base` weighs them; the split, the
    pool and the uniform fraction are those of `base`.

    In the authors' notebook of the curriculum, which was read with the abstract, the variation is that of the number of
    turns, with the limit for an episode that failed, times 1 + 1 / (4 n) for n episodes; nothing decays; `explore` is
    the square root of 2; and the tasks of an arm are all as likely.
    """

    by: Annotated[str, NONBLANK] = "tag"
    gain: Literal["variation", "variance"] = "variation"
    explore: Annotated[float, Range(0)] = 0.5
    decay: Annotated[float, Range(0, 1)] = 0.9
    pulls: Annotated[int, Range(1, 4096)] = 64

    def weights(self, history: TaskHistory) -> Array:
        groups = members(history, self.by)
        gains, counts = self._gains(history), np.where(history.counted, self.decay ** (history.age - 1), 0.0)
        played = np.array([counts[tasks].sum() for tasks in groups.values()])
        total = np.array([(counts * gains)[tasks].sum() for tasks in groups.values()])
        potential = np.divide(total, played, out=np.zeros(len(groups)), where=played > 0)
        pulled = np.zeros(len(groups))
        for _ in range(self.pulls):
            known = np.maximum(played + pulled, 1e-9)
            bounds = potential + self.explore * np.sqrt(np.log1p(known.sum()) / known)
            pulled[np.argmax(bounds)] += 1
        return shared(history, self.base, groups, (pulled / self.pulls).tolist())

    def _gains(self, history: TaskHistory) -> Array:
        rates, episodes = np.nan_to_num(history.of.recent[:, -1]), history.of.recent_episodes[:, -1]
        variance = rates * (1 - rates)
        return variance if self.gain == "variance" else np.sqrt(variance) / np.maximum(rates, 1 / (1 + episodes))
