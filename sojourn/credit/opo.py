"""The baseline of least variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sojourn.credit.relative import GroupEstimator, Values, seats, credit_trajectories, trajectory_returns, per_label
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True, kw_only=True)
class OPO(GroupEstimator):
    """Return minus the group's mean return weighted by length (Hao et al. 2025, arXiv:2505.23585).

    The baseline of least variance weighs returns by the squared norm of their gradients, which the paper takes to grow
    with the number of sampled tokens. It is meant for exactly on-policy steps, without clipping or deviation.
    """

    group_relative: ClassVar[bool] = True

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        lengths = np.array([sum(len(turn.sample.tokens) for turn in t.turns) for t in group.trajectories])
        found, names = trajectory_returns(judged), seats(group)
        weighted = per_label(names, found * lengths, _sum) / np.maximum(per_label(names, lengths.astype(np.float64), _sum), 1)
        return credit_trajectories(group, per_label(names, found, _differ) * (found - weighted))


def _sum(values: Values) -> Values:
    return np.full_like(values, values.sum())


def _differ(values: Values) -> Values:
    """1 where there is anything to compare, else 0: rounding must not make a gain of equal returns."""
    return np.full_like(values, len(values) > 1 and np.ptp(values) > 0)
