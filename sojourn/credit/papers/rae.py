"""A moving-average baseline for each role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from sojourn.config.fields import Range
from sojourn.credit.relative import credit_trajectories, seats, trajectory_returns
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class RAE:
    """Return minus the moving average of the earlier returns of the same seat in the same world (role-conditioned
    advantage estimation of SPIRAL: Liu et al. 2025, arXiv:2506.24119, eq. 2).

    It is meant for seats that are not exchangeable, as in a zero-sum game in which one may win more often than another.
    The average begins at 0 and moves by 1 - `decay` for every trajectory, group by group within the step, each time
    after the group's credit is computed, so that no return is part of its own baseline. With groups of one episode, as
    in the preset, that is the order of the authors' code, which updates the average after each game; the episodes of a
    larger group share one baseline, and update it in no order. Each actor of the authors has an average of its own, of
    the games that it plays.
    """

    decay: Annotated[float, Range(0, below=1)] = 0.95
    _average: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    needs = frozenset[str]()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        return [self._credit(group, group_scores) for group, group_scores in zip(groups, scores, strict=True)]

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        roles, returns = [f"{group.task.env}/{seat}" for seat in seats(group)], trajectory_returns(scores)
        baseline = np.array([self._average.get(role, 0.0) for role in roles])
        credit = credit_trajectories(group, returns - baseline)
        for role in dict.fromkeys(roles):
            of_role = returns[[other == role for other in roles]]
            kept = self.decay ** len(of_role)  # as if each return had updated the average, in no order
            self._average[role] = kept * self._average.get(role, 0.0) + (1 - kept) * float(np.mean(of_role))
        return credit

    def state(self) -> Mapping[str, Any]:
        return dict(self._average)

    def restore(self, state: Mapping[str, Any]) -> None:
        self._average.clear()
        self._average.update(state)
