"""The leave-one-out baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sojourn.credit.relative import (
    GroupEstimator,
    Values,
    centred,
    credit_trajectories,
    per_label,
    seats,
    trajectory_returns,
)
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True, kw_only=True)
class RLOO(GroupEstimator):
    """Return minus the mean return of the group's *other* episodes (Ahmadian et al. 2024, arXiv:2402.14740, section
    2.3).

    It is unbiased for any group of two or more; a group of one gets zero credit. It assumes that the episodes of a
    group are exchangeable; where several seats are trained, each trajectory is compared with those of its own seat.
    """

    group_relative = True

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        return credit_trajectories(group, per_label(seats(group), trajectory_returns(scores), less_mean_of_others))


def less_mean_of_others(values: Values) -> Values:
    """Subtracts the mean of the other values, which is G / (G - 1) times the distance from the mean of all."""
    return centred(values) * len(values) / max(len(values) - 1, 1)
