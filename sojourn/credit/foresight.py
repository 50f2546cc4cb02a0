"""A planner's turns by what became of them when they were carried out, beside others in the same state."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import numpy as np

from sojourn.config.registry import SOME, Range
from sojourn.credit.relative import GroupEstimator, Values, concatenated, seats_of_turns, credit_turns, standardised, per_label
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True, kw_only=True)
class Foresight(GroupEstimator):
    """Each turn's own reward, and for a turn of `planner` also `share` times that of the `executor`'s turn that carried
    it out, standardised among the group's turns of the same seat in the same state (after the foresight advantage of
    Hi-Agent: Wu et al. 2025, arXiv:2510.14388).

    Every subgoal is one step, so no later reward counts, and the n-th turn of the executor in an episode carries out
    the n-th of the planner. The planner's other rewards, such as that of its format, are what the world or a judge pays
    it. States are those of `Env.state_key`: the executor's should hold the subgoal. One met once teaches nothing.

    The source is accounts of the paper. They say that the planner is paid a weighted sum of format, execution and
    something third, not with what weights, so `share` is ours. The paper draws its subgoals anew in each state of
    recorded plays; here the plays of a group are compared where they meet.
    """

    planner: Annotated[str, SOME] = "planner"
    executor: Annotated[str, SOME] = "executor"
    execution_coef: float = 1.0
    epsilon: Annotated[float, Range(0)] = 1e-6

    env_needs: ClassVar[frozenset[str]] = frozenset({"state_key"})
    unverified: ClassVar[str] = "the paper's abstract and reviews were read, not its reward nor its weights"

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        states = [turn.state for trajectory in group.trajectories for turn in trajectory.turns]
        labels: list[Hashable] = list(zip(seats_of_turns(group), states, strict=True))
        gain = partial(standardised, epsilon=self.epsilon)
        return credit_turns(group, per_label(labels, self._worth(group, judged), gain))

    def _worth(self, group: Group, judged: Sequence[Score]) -> Values:
        """What every turn of the group is paid, the planner's with what was paid for carrying them out."""
        own = concatenated(score.turns.astype(np.float64) for score in judged)
        names = np.array(seats_of_turns(group), dtype=object)
        owner = np.array([n for n, t in zip(group.owners, group.trajectories, strict=True) for _ in t.turns], dtype=int)
        worth = own.copy()
        for episode in set(group.owners):
            planned, done = (np.flatnonzero((owner == episode) & (names == n)) for n in (self.planner, self.executor))
            both = min(len(planned), len(done))
            worth[planned[:both]] += self.execution_coef * own[done[:both]]
        return worth
