"""Advantages of planner and executor turns, compared within states."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.credit.by_turn import concatenated, credit_turns, seats_of_turns
from sojourn.credit.relative import GroupEstimator, Values, per_label, standardised
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True, kw_only=True)
class Foresight(GroupEstimator):
    """Reward of each turn, to which a turn of the `planner` seat adds `execution_coef` times the reward of the
    `executor` turn that carried it out, standardised among the group's turns of the same seat in the same state (after
    the foresight advantage of Hi-Agent: Wu et al. 2025, arXiv:2510.14388).

    Every subgoal is one step, so no later reward counts: the n-th turn of the executor in an episode carries out the
    n-th turn of the planner. Other rewards of the planner, such as one for its format, are given by the world or a
    judge. States are those of `Env.state_key`; that of the executor should contain the subgoal. A state that occurs
    once gets zero credit, and so does one that is not known, as of imported turns. The executor may be another model,
    trained or not: one that is not trained has the world's rewards.

    The source is accounts of the paper. They say that the planner's reward is a weighted sum of format, execution and a
    third term, but not the weights, so `execution_coef` is ours. The paper draws new subgoals in each state of recorded
    episodes; here the episodes of a group are compared where they reach the same state.
    """

    planner: Annotated[str, NONBLANK] = "planner"
    executor: Annotated[str, NONBLANK] = "executor"
    execution_coef: float = 1.0
    epsilon: Annotated[float, Range(0)] = 1e-6

    env_needs = frozenset({"state_key"})
    unverified = "the paper's abstract and reviews were read, not its reward nor its weights"

    @property
    def reads_all_models(self) -> bool:
        return self.execution_coef != 0

    @property
    def named_seats(self) -> frozenset[str]:
        return frozenset({self.planner, self.executor})

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
        states = [n if turn.state is None else turn.state for n, turn in enumerate(turns)]
        labels: list[Hashable] = list(zip(seats_of_turns(group), states, strict=True))
        normalise = partial(standardised, epsilon=self.epsilon)
        return credit_turns(group, per_label(labels, self._rewards(group, scores), normalise))

    def _rewards(self, group: Group, scores: Sequence[Score]) -> Values:
        """Returns the reward of every turn of the group, with the execution's reward added for the planner."""
        total = concatenated(score.turns.astype(np.float64) for score in scores)
        names = np.array(seats_of_turns(group), dtype=object)
        owner = np.array([n for n, t in zip(group.owners, group.trajectories, strict=True) for _ in t.turns], dtype=int)
        scored = {id(t): score.turns for t, score in zip(group.trajectories, scores, strict=True)}
        for episode in set(group.owners):
            planned = np.flatnonzero((owner == episode) & (names == self.planner))
            executors = [t for t in group.episodes[episode].trajectories if t.agent == self.executor]
            executed = concatenated(
                scored.get(id(t), np.array([turn.reward for turn in t.turns])).astype(np.float64) for t in executors
            )
            pairs = min(len(planned), len(executed))
            total[planned[:pairs]] += self.execution_coef * executed[:pairs]
        return total
