"""A main agent and those that it calls, each beside its own kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.registry import SOME, Range
from sojourn.credit.relative import GroupEstimator, Values, credit_trajectories, trajectory_returns
from sojourn.types import Credit, Group, IntArray, Score


@dataclass(frozen=True, kw_only=True)
class MGRPO(GroupEstimator):
    """Returns standardised by seat, where each episode counts alike however often it called one (M-GRPO: Hong et al.
    2025, arXiv:2511.13288, eq. 9-13).

    To the return of a called agent `share` of the main agent's in the same episode is added (eq. 5, where rewards of
    format and of an expert are what the world or a judge pays). The paper copies or drops the trajectories of called
    agents at random until every episode has as many (trajectory alignment), so that neither an advantage nor the loss
    depends on how often they were called. Here they are weighed by how many there are, which is the same on average: in
    the baseline by this estimator, in the loss by `aggregate.by = "seat"`, which goes with it. An episode that called
    nobody has no share in the called agent's loss, and all agents have the same weights, where the paper's have a model
    and a loss each.
    """

    main_agent: Annotated[str, SOME] = "agent"
    main_coef: float = 0.4
    epsilon: Annotated[float, Range(0)] = 1e-6

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        owner = np.array(group.owners, dtype=np.int64)
        names = np.array([t.agent for t in group.trajectories], dtype=object)
        worth, gain = trajectory_returns(judged), np.zeros(len(judged))
        mains = {int(owner[n]): worth[n] for n in np.flatnonzero(names == self.main_agent)}
        called = np.flatnonzero(names != self.main_agent)
        worth[called] += [self.main_coef * mains.get(int(owner[n]), 0.0) for n in called]
        for name in dict.fromkeys(names):
            some = np.flatnonzero(names == name)
            gain[some] = self._relative(worth[some], owner[some])
        return credit_trajectories(group, gain)

    def _relative(self, worth: Values, owner: IntArray) -> Values:
        if np.ptp(worth) == 0:
            return np.zeros_like(worth)
        _, where, counts = np.unique(owner, return_inverse=True, return_counts=True)
        weight = 1 / counts[where]
        mean = np.average(worth, weights=weight)
        return (worth - mean) / (np.sqrt(np.average((worth - mean) ** 2, weights=weight)) + self.epsilon)
