"""The group's length-weighted mean return as the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sojourn.credit.relative import GroupEstimator, Values, credit_trajectories, per_label, seats, trajectory_returns
from sojourn.finite import differ
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True, kw_only=True)
class OPO(GroupEstimator):
    """Return minus the group's mean return, where each return is weighted by the length of its trajectory (Hao et al.
    2025, arXiv:2505.23585).

    The baseline of minimum variance weighs returns by the squared norm of their gradients, which the paper assumes to
    grow with the number of sampled tokens. It is meant for exactly on-policy steps, without clipping and without
    division by a standard deviation.
    """

    group_relative = True

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        lengths = np.array([sum(len(turn.sample.tokens) for turn in t.turns) for t in group.trajectories])
        returns, names = trajectory_returns(scores), seats(group)
        weights = np.maximum(per_label(names, lengths.astype(np.float64), _sum), 1)
        baseline = per_label(names, returns * lengths, _sum) / weights
        return credit_trajectories(group, per_label(names, returns, _differ) * (returns - baseline))


def _sum(values: Values) -> Values:
    return np.full_like(values, values.sum())


def _differ(values: Values) -> Values:
    """Returns 1 for all values if any differ, else 0: rounding must not give equal returns an advantage."""
    return np.full_like(values, differ(values))
