"""Group-relative advantages of whole trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from sojourn.config.fields import Range
from sojourn.config.unused import refuse_unused
from sojourn.credit.relative import (
    GroupEstimator,
    centred,
    credit_trajectories,
    per_label,
    seats,
    standardised,
    trajectory_returns,
)
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True, kw_only=True)
class GRPO(GroupEstimator):
    """Return minus the group's mean return, divided by the group's standard deviation of returns (Shao et al. 2024,
    arXiv:2402.03300, section 4.1.2).

    All tokens of a trajectory get this one advantage. `scale_by_std = false` leaves out the division, which is the
    advantage of Dr. GRPO (Liu et al. 2025, arXiv:2503.20783, section 3.2). The standard deviation is the population's
    (ddof = 0), `epsilon` is added to it, and equal returns get zero credit. The estimator assumes that the episodes of
    a group differ only by sampling; where several seats are trained, each is compared with those of its seat.
    """

    scale_by_std: bool = True
    epsilon: Annotated[float, Range(0)] = 1e-6

    group_relative = True

    def __post_init__(self) -> None:
        refuse_unused(self, [] if self.scale_by_std else ["epsilon"], "with scale_by_std = false")

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        normalise = partial(standardised, epsilon=self.epsilon) if self.scale_by_std else centred
        return credit_trajectories(group, per_label(seats(group), trajectory_returns(scores), normalise))
