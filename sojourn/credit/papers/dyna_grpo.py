"""Group-relative advantages for plain and simulation-refined trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from sojourn.config.fields import NONBLANK, Range
from sojourn.credit.by_turn import concatenated
from sojourn.credit.relative import GroupEstimator, Values, credit_trajectories, seats, standardised, trajectory_returns
from sojourn.finite import tolerance
from sojourn.types import Credit, Group, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class DynaGRPO(GroupEstimator):
    """Return standardised among the group's plain trajectories; for refined ones, 1 where the trajectory succeeds with
    a return above the mean of the refined and above the mean of the plain ones, else 0 (Dyna-GRPO of Dyna-Mind: Yu et
    al. 2025, arXiv:2510.09577).

    A trajectory is refined if the number `info_key` in the `Turn.info` of any turn is above 0: its replies were sampled
    again after the agent had been shown the states to which its plan really leads, as the agent `sim_rollout` does it.
    Without refined trajectories this is `grpo`.

    The paper improves the simulation in some steps and the policy in others; here a group may hold both kinds, and each
    trajectory is credited by the rule of its kind. The source is an account of the paper, which quotes both advantages
    without the numbers of their equations; we take success for what it calls correct.
    """

    info_key: Annotated[str, NONBLANK] = "refined"
    epsilon: Annotated[float, Range(0)] = 1e-6

    group_relative = True
    unverified = "an account of the paper that quotes both advantages was read, not its text"

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        names, returns = np.array(seats(group), dtype=object), trajectory_returns(scores)
        is_refined = np.array([self._is_refined(t) for t in group.trajectories], dtype=bool)
        succeeded = np.array([t.success for t in group.trajectories], dtype=bool)
        advantages = np.zeros(len(returns))
        for name in dict.fromkeys(names):
            plain, refined = (np.flatnonzero((names == name) & kind) for kind in (~is_refined, is_refined))
            advantages[plain] = standardised(returns[plain], self.epsilon)
            advantages[refined] = succeeded[refined] & _above_both_means(returns[refined], returns[plain])
        return credit_trajectories(group, advantages)

    def _is_refined(self, trajectory: Trajectory) -> bool:
        return any(turn.info.get(self.info_key, 0.0) > 0 for turn in trajectory.turns)


def _above_both_means(values: Values, others: Values) -> NDArray[np.bool_]:
    """Returns which values are above their own mean and above the mean of the others, if there are any."""
    bound = max((group.mean() for group in (values, others) if len(group)), default=0.0)
    return values - bound > tolerance(concatenated((values, others)))
