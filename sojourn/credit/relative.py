"""What group-relative estimators share: comparison within labels, and credit from advantages of trajectories.

Axis letters: G trajectories of a group, K values of any kind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from sojourn.finite import differ
from sojourn.types import Credit, Group, Score, Streams

Values = NDArray[np.float64]
Normalise = Callable[[Values], Values]  # computes the advantages (K,) of comparable values (K,)


class GroupEstimator:
    """Base of estimators that compute the credit of each group independently of the other groups of the step."""

    needs = frozenset[str]()
    min_group_size = 2  # episodes: a group of one gets zero credit

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        return [self._credit(group, group_scores) for group, group_scores in zip(groups, scores, strict=True)]

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        raise NotImplementedError


def trajectory_returns(scores: Sequence[Score]) -> Values:
    """Returns the undiscounted return of each trajectory: (G,)."""
    return np.array([score.total for score in scores], dtype=np.float64)


def seats(group: Group) -> list[str]:
    """Returns the seat of each trajectory: only trajectories of the same seat are compared."""
    return [trajectory.agent for trajectory in group.trajectories]


def per_label(labels: Iterable[Hashable], values: Values, normalise: Normalise) -> Values:
    """Applies `normalise` to each label's values separately and returns the results in the original order: (K,)."""
    indices_of: dict[Hashable, list[int]] = {}
    for index, label in enumerate(labels):
        indices_of.setdefault(label, []).append(index)
    out = np.zeros(len(values), dtype=np.float64)
    for indices in indices_of.values():
        out[indices] = normalise(values[indices])
    return out


def centred(values: Values) -> Values:
    """Subtracts the mean. Values that are equal but for rounding to 32 bits, and a single one, give exactly 0."""
    return values - values.mean() if differ(values) else np.zeros_like(values)


def standardised(values: Values, epsilon: float = 1e-6, ddof: int = 0) -> Values:
    """Subtracts the mean and divides by the standard deviation + `epsilon`.

    The deviation is the population's, or with `ddof = 1` the sample's. Equal values give exactly 0.
    """
    difference = centred(values)
    return difference / (values.std(ddof=ddof) + epsilon) if difference.any() else difference


def credit_trajectories(group: Group, advantages: Values) -> list[Credit]:
    """Gives all tokens of a trajectory the same advantage, from one advantage per trajectory (G,)."""
    return [Credit.uniform(t, float(advantage)) for t, advantage in zip(group.trajectories, advantages, strict=True)]
