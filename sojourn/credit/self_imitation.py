"""Imitation of one's own turns that did better than expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from sojourn.config.fields import Range
from sojourn.credit.relative import Values, per_label, seats
from sojourn.credit.temporal import at_first_token, turn_steps
from sojourn.types import Credit, FloatArray, Group, Score, Streams, Trajectory


@dataclass(frozen=True, kw_only=True)
class SelfImitation:
    """max(R - V, 0) for all tokens of a turn, where R is the return from the turn on and V what was expected
    (self-imitation learning: Oh et al. 2018, arXiv:1806.05635).

    With the loss `nll` it imitates those turns of replayed groups that did better than expected, and no others. With
    `baseline` = "critic", V is the critic's value before the turn, which learns R only where R is above it, by the
    loss `value` (the authors weigh it with 0.01); with "group" it is the mean return of the group's episodes, for which
    no critic is needed. An advantage is at most `max_advantage`. The paper's abstract and the authors' code were read:
    there, too, the bound is 1, V is the critic's, and only episodes with a reward above 0 are kept. It draws turns in
    proportion to the advantage, where `replay` draws groups, and trains several batches per step.
    """

    baseline: Literal["critic", "group"] = "group"
    discount: Annotated[float, Range(0, 1)] = 1.0
    max_advantage: Annotated[float, Range(above=0)] = 1.0

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"values"} if self.baseline == "critic" else ())

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"targets"} if self.baseline == "critic" else ())

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        if self.baseline == "critic":
            values = streams["values"]
            return [
                [self._of_critic(*one) for one in zip(group.trajectories, judged, of_group, strict=True)]
                for group, judged, of_group in zip(groups, scores, values, strict=True)
            ]
        return [self._of_group(group, judged) for group, judged in zip(groups, scores, strict=True)]

    def _of_critic(self, trajectory: Trajectory, score: Score, values: Sequence[FloatArray]) -> Credit:
        returns = self._returns(score)
        expected = turn_steps(score, values, 0.0, self.discount).values
        targets = np.where(returns > expected, returns, np.nan)
        return Credit(self._credit(trajectory, returns - expected).tokens, at_first_token(trajectory, targets))

    def _of_group(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        returns = [self._returns(score) for score in scores]
        pairs = zip(returns, scores, strict=True)
        firsts = np.array([of_turns[0] if len(of_turns) else score.total for of_turns, score in pairs])
        means = per_label(seats(group), firsts, lambda values: np.full(len(values), values.mean()))
        return [
            self._credit(trajectory, of_turns - mean)
            for trajectory, of_turns, mean in zip(group.trajectories, returns, means, strict=True)
        ]

    def _credit(self, trajectory: Trajectory, gains: Values) -> Credit:
        return Credit.per_turn(trajectory, np.clip(gains, 0, self.max_advantage))

    def _returns(self, score: Score) -> Values:
        """Returns the discounted return from each turn on: (T,)."""
        returns, following = np.zeros(len(score.turns)), 0.0
        for turn in reversed(range(len(returns))):
            following = returns[turn] = float(score.turns[turn]) + self.discount * following
        return returns
