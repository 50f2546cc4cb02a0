"""Returns compared within strata of trajectories of like structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from sojourn.config.fields import Range
from sojourn.credit.relative import (
    GroupEstimator,
    Values,
    credit_trajectories,
    per_label,
    seats,
    standardised,
    trajectory_returns,
)
from sojourn.types import Credit, Group, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class Stratified(GroupEstimator):
    """`blend` times the return standardised within the trajectory's stratum, plus 1 - `blend` times the return
    standardised over the whole group (Zhu et al. 2025, arXiv:2510.06214).

    So trajectories of another structure do not serve as the baseline. A stratum holds the trajectories with the same
    number of turns, or, where `info_key` names a number in `Turn.info` (a count of searches, say), those with the same
    sum of it. A stratum of one, or of equal returns, adds nothing. The source is accounts of the paper, which give both
    terms and say that they are blended linearly; the default of `blend` is ours, and the paper's standard deviation may
    be the sample's.
    """

    info_key: str = ""
    blend: Annotated[float, Range(0, 1)] = 0.8
    epsilon: Annotated[float, Range(0)] = 1e-6

    group_relative = True
    unverified = "the paper's abstract and accounts of it were read, not how it blends"

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        normalise = partial(standardised, epsilon=self.epsilon)
        returns, names = trajectory_returns(scores), seats(group)
        strata = [(name, self._stratum(t)) for name, t in zip(names, group.trajectories, strict=True)]
        local: Values = per_label(strata, returns, normalise)
        return credit_trajectories(group, self.blend * local + (1 - self.blend) * per_label(names, returns, normalise))

    def _stratum(self, trajectory: Trajectory) -> float:
        if not self.info_key:
            return len(trajectory.turns)
        return sum(turn.info.get(self.info_key, 0.0) for turn in trajectory.turns)
