"""Group-relative advantages for a main agent and the agents that it calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.credit.relative import GroupEstimator, Values, credit_trajectories, trajectory_returns
from sojourn.finite import differ
from sojourn.types import Credit, Group, IntArray, Score


@dataclass(frozen=True, kw_only=True)
class MGRPO(GroupEstimator):
    """Return standardised among the trajectories of the same seat in the group, where every episode has the same weight
    however often it called that seat (M-GRPO: Hong et al. 2025, arXiv:2511.13288, eq. 9-13).

    The return of a called agent is increased by `main_coef` times the return of the seat `main_agent` in the same
    episode (eq. 5; its rewards for format and from an expert are given here by the world or a judge). The paper copies
    or drops trajectories of called agents at random until every episode has as many (trajectory alignment), so that
    neither an advantage nor the loss depends on how often they were called. Here they are weighted by their number,
    which is the same on average: in the baseline by this estimator, in the loss by `aggregate.by = "seat"`, which goes
    with it. An episode without calls has no part in the loss of the called agent. Agents may share a model, or have
    models that learn side by side, as in the paper: a learner of called agents then reads the main agent's return too.
    """

    main_agent: Annotated[str, NONBLANK] = "agent"
    main_coef: float = 0.4
    epsilon: Annotated[float, Range(0)] = 1e-6

    @property
    def named_seats(self) -> frozenset[str]:
        return frozenset({self.main_agent})

    @property
    def reads_all_models(self) -> bool:
        return self.main_coef != 0

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        owner = np.array(group.owners, dtype=np.int64)
        names = np.array([t.agent for t in group.trajectories], dtype=object)
        returns, advantages = trajectory_returns(scores), np.zeros(len(scores))
        main_returns = {int(owner[n]): returns[n] for n in np.flatnonzero(names == self.main_agent)}
        called = np.flatnonzero(names != self.main_agent)
        for episode in {int(owner[n]) for n in called} - main_returns.keys():  # one that is not trained
            main = [t for t in group.episodes[episode].trajectories if t.agent == self.main_agent]
            main_returns[episode] = sum(t.reward for t in main)
        returns[called] += [self.main_coef * main_returns[int(owner[n])] for n in called]
        for name in dict.fromkeys(names):
            same_seat = np.flatnonzero(names == name)
            advantages[same_seat] = self._standardised(returns[same_seat], owner[same_seat])
        return credit_trajectories(group, advantages)

    def _standardised(self, returns: Values, owner: IntArray) -> Values:
        """Standardises returns under weights by which every episode (`owner`) counts the same."""
        if not differ(returns):
            return np.zeros_like(returns)
        _, where, counts = np.unique(owner, return_inverse=True, return_counts=True)
        weight = 1 / counts[where]
        mean = np.average(returns, weights=weight)
        return (returns - mean) / (np.sqrt(np.average((returns - mean) ** 2, weights=weight)) + self.epsilon)
