"""Trajectories that were refined by what really came next, which must beat the mean, among plain ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from sojourn.config.registry import SOME, Range
from sojourn.credit.relative import GroupEstimator, Values, concatenated, seats, credit_trajectories, standardised, trajectory_returns
from sojourn.types import Credit, Group, Score, Trajectory

SAME = 1e-6  # of the greatest return: what rounding to float32 leaves between equal numbers is less


@dataclass(frozen=True, kw_only=True)
class DynaGRPO(GroupEstimator):
    """The return standardised among the group's plain trajectories; of refined ones, 1 for those that succeed with a
    return above the mean of the refined and above that of the plain, 0 for others (Dyna-GRPO of Dyna-Mind: Yu et al.
    2025, arXiv:2510.09577).

    Refined is what has a number above 0 under `refined` in the `Turn.info` of any turn: its replies were given anew
    after the agent was shown which states its plan really leads to. To play so (SimRollout) takes a world that can try
    a plan; nothing here does, and without such trajectories this is `grpo`.

    The paper improves the simulation in some steps and the policy in others; here a group may hold both kinds, and each
    trajectory is credited by its own. The source is an account of the paper, which quotes both advantages without the
    numbers of their equations; success is taken for what it calls correct.
    """

    info_key: Annotated[str, SOME] = "refined"
    epsilon: Annotated[float, Range(0)] = 1e-6

    group_relative: ClassVar[bool] = True
    unverified: ClassVar[str] = "an account of the paper that quotes both advantages was read, not its text"

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        names, worth = np.array(seats(group), dtype=object), trajectory_returns(judged)
        refined = np.array([self._is_refined(t) for t in group.trajectories], dtype=bool)
        won = np.array([t.success for t in group.trajectories], dtype=bool)
        gain = np.zeros(len(worth))
        for name in dict.fromkeys(names):
            plain, anew = np.flatnonzero((names == name) & ~refined), np.flatnonzero((names == name) & refined)
            gain[plain] = standardised(worth[plain], self.epsilon)
            gain[anew] = won[anew] & _above(worth[anew], worth[plain])
        return credit_trajectories(group, gain)

    def _is_refined(self, trajectory: Trajectory) -> bool:
        return any(turn.info.get(self.info_key, 0.0) > 0 for turn in trajectory.turns)


def _above(values: Values, others: Values) -> NDArray[np.bool_]:
    """Which of the values are above their own mean and above that of the others, if there are any."""
    bar = max((some.mean() for some in (values, others) if len(some)), default=0.0)
    return values - bar > SAME * np.abs(concatenated((values, others))).max(initial=0.0)
