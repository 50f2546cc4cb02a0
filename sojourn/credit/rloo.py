"""Leave-one-out baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sojourn.credit.relative import GroupEstimator, Values, centred, seats, credit_trajectories, trajectory_returns, per_label
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True, kw_only=True)
class RLOO(GroupEstimator):
    """Return minus the mean return of the group's *other* episodes (Ahmadian et al. 2024, arXiv:2402.14740, eq. 6).

    Unbiased for any group of two or more; a group of one gets zero credit. Assumes the episodes of a group are
    exchangeable; where several seats are trained, each is compared with its own kind.
    """

    group_relative: ClassVar[bool] = True

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        return credit_trajectories(group, per_label(seats(group), trajectory_returns(judged), _others))


def _others(returns: Values) -> Values:
    """Less the mean of the others, which is G / (G - 1) times the distance from the mean of all."""
    return centred(returns) * len(returns) / max(len(returns) - 1, 1)
