"""The gradient of a loss on regret, in which the tasks of the highest regret count most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from sojourn.config.fields import Range
from sojourn.credit.relative import Values, credit_trajectories, per_label, seats, trajectory_returns
from sojourn.credit.rloo import less_mean_of_others
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class RegretLoss:
    """Advantages whose policy gradient descends the regret-loss, sum_j h(R_j) f(R_j, k) / sum_j f(R_j, k), a smooth
    maximum of the regrets R_j of N loss sequences (Park et al. 2024, arXiv:2403.16843, section 5.1), with f(R, k) =
    exp(k R) and h(R) = max(0, R)^`power`.

    A loss sequence is a task, and R_j the mean of minus the returns of its plays, for each seat: the reward must be
    minus the regret, as the reward `regret` makes it. With w_j = f(R_j, k) / sum_i f(R_i, k), the derivative of the
    loss by R_j is c_j = w_j (h'(R_j) + k (h(R_j) - sum_i w_i h(R_i))), so that the advantage of a play is N c_j times
    how far its return is above the mean of the group's others. With `k = 0` all sequences count alike, and with
    `power = 1` this is then RLOO where every regret is above 0; a larger `k` comes closer to the worst sequence.

    The paper's policy gives a distribution over actions, through whose exact regret it differentiates; here actions are
    sampled, and the same gradient is estimated from their log-probabilities. As R_j is estimated from the same plays,
    c_j is biased in small groups. Where losses answer to what was played, the regret is of the losses that came.
    """

    k: Annotated[float, Range(0)] = 1.0
    power: Literal[1, 2] = 2

    needs = frozenset[str]()
    min_group_size = 2
    unverified = "the paper's abstract was read, not its text: the loss is written from memory"

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        labels = [list(dict.fromkeys(seats(group))) for group in groups]
        returns = [trajectory_returns(of_group) for of_group in scores]
        regrets = [
            -float(np.mean([value for seat, value in zip(seats(group), of_group, strict=True) if seat == label]))
            for group, of_group, of_labels in zip(groups, returns, labels, strict=True)
            for label in of_labels
        ]
        factors = iter(len(regrets) * self.derivative(np.array(regrets)))
        return [
            _credited(group, of_group, {label: float(next(factors)) for label in of_labels})
            for group, of_group, of_labels in zip(groups, returns, labels, strict=True)
        ]

    def loss(self, regrets: Values) -> float:
        """Returns the regret-loss of the regrets of N loss sequences: (N,)."""
        return float(self._weights(regrets) @ self._h(regrets))

    def derivative(self, regrets: Values) -> Values:
        """Returns the derivative of the regret-loss by each regret: (N,)."""
        if not len(regrets):
            return regrets
        weights, h = self._weights(regrets), self._h(regrets)
        slope = self.power * np.maximum(regrets, 0.0) ** (self.power - 1) * (regrets > 0)
        return weights * (slope + self.k * (h - weights @ h))

    def _h(self, regrets: Values) -> Values:
        return np.maximum(regrets, 0.0) ** self.power

    def _weights(self, regrets: Values) -> Values:
        """Returns f(R_j, k) over its sum, a softmax: (N,)."""
        exponents = np.exp(self.k * (regrets - regrets.max()))
        return exponents / exponents.sum()


def _credited(group: Group, returns: Values, factors: dict[str, float]) -> list[Credit]:
    advantages = per_label(seats(group), returns, less_mean_of_others)
    return credit_trajectories(group, advantages * np.array([factors[seat] for seat in seats(group)]))
