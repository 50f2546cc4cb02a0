"""Group-relative policy optimisation's advantage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from sojourn.config.registry import Range
from sojourn.credit.relative import GroupEstimator, centred, seats, credit_trajectories, standardised, trajectory_returns, per_label
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True, kw_only=True)
class GRPO(GroupEstimator):
    """Return minus the group's mean return, over its deviation (Shao et al. 2024, arXiv:2402.03300, section 4.1.2).

    `deviation = false` gives the unscaled advantage of Dr. GRPO (Liu et al. 2025, arXiv:2503.20783, section 3.2). The
    deviation is the population's (ddof = 0), and equal returns get zero credit. Assumes that the episodes of a group
    are exchangeable; where several seats are trained, each is compared with its own kind.
    """

    scale_by_std: bool = True
    epsilon: Annotated[float, Range(0)] = 1e-6

    group_relative: ClassVar[bool] = True

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        gain = partial(standardised, epsilon=self.epsilon) if self.scale_by_std else centred
        return credit_trajectories(group, per_label(seats(group), trajectory_returns(judged), gain))
