"""Trajectories compared with those of their own structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from sojourn.config.registry import Range
from sojourn.credit.relative import GroupEstimator, Values, seats, credit_trajectories, standardised, trajectory_returns, per_label
from sojourn.types import Credit, Group, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class Stratified(GroupEstimator):
    """`blend` times the return standardised within its stratum, the rest by the whole group (Zhu et al. 2025,
    arXiv:2510.06214): so that trajectories of another structure are no baseline.

    A stratum is what has as many turns, or where `by` names a number in `Turn.info` (a count of searches, say), what
    has the same sum of it. A stratum of one, or of equal returns, adds nothing. The source is accounts of the paper,
    which give both terms and that they are blended linearly; the default of `blend` is ours, and the paper's deviation
    may be the sample's.
    """

    info_key: str = ""
    blend: Annotated[float, Range(0, 1)] = 0.8
    epsilon: Annotated[float, Range(0)] = 1e-6

    group_relative: ClassVar[bool] = True
    unverified: ClassVar[str] = "the paper's abstract and accounts of it were read, not how it blends"

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        gain = partial(standardised, epsilon=self.epsilon)
        found, names = trajectory_returns(judged), seats(group)
        strata = [(name, self._stratum(t)) for name, t in zip(names, group.trajectories, strict=True)]
        own: Values = per_label(strata, found, gain)
        return credit_trajectories(group, self.blend * own + (1 - self.blend) * per_label(names, found, gain))

    def _stratum(self, trajectory: Trajectory) -> float:
        return (
            sum(turn.info.get(self.info_key, 0.0) for turn in trajectory.turns)
            if self.info_key
            else len(trajectory.turns)
        )
