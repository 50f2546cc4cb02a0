"""What group-relative estimators share: returns, comparison of turns and trajectories, and credit from advantages.

Axis letters: G trajectories of a group, T turns of a trajectory, N values of any kind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sojourn.types import Credit, Group, Score, Streams

Values = NDArray[np.float64]
Normalise = Callable[
    [Values], Values
]  # turns values that may be compared with each other into advantages, (N,) -> (N,)


class GroupEstimator:
    """Base of estimators that compute the credit of each group independently of the other groups of the step."""

    needs: ClassVar[frozenset[str]] = frozenset()
    min_group_size: ClassVar[int] = 2  # episodes: a group of one gets zero credit

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        return [self._credit(group, group_scores) for group, group_scores in zip(groups, scores, strict=True)]

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        raise NotImplementedError


def trajectory_returns(scores: Sequence[Score]) -> Values:
    """Returns the undiscounted return of each trajectory: (G,)."""
    return np.array([score.total for score in scores], dtype=np.float64)


def returns_to_go(score: Score, discount: float) -> Values:
    """Returns the discounted return from each turn on: (T,)."""
    return discounted_sums(score.turns.astype(np.float64), discount)


def discounted_sums(values: Values, discount: float) -> Values:
    """Returns, for each place t, the sum of discount^(k - t) values[k] over k >= t: (N,)."""
    running, sums = 0.0, np.zeros(len(values))
    for place in reversed(range(len(values))):
        running = sums[place] = values[place] + discount * running
    return sums


def seats(group: Group) -> list[str]:
    """Returns the seat of each trajectory: only trajectories of the same seat are compared."""
    return [trajectory.agent for trajectory in group.trajectories]


def seats_of_turns(group: Group) -> list[str]:
    """Returns the seat that took each turn of the group, trajectory after trajectory."""
    return [trajectory.agent for trajectory in group.trajectories for _ in trajectory.turns]


def concatenated(arrays: Iterable[Values]) -> Values:
    """Returns the arrays as one; no arrays give shape (0,)."""
    return np.concatenate([np.zeros(0), *arrays])


def split_turns(group: Group, values: Values) -> list[Values]:
    """Splits one value per turn of the group by trajectory: (T,) each."""
    ends = np.cumsum([len(trajectory.turns) for trajectory in group.trajectories])
    return np.split(values, ends[:-1]) if len(ends) else []


def per_label(labels: Iterable[Hashable], values: Values, normalise: Normalise) -> Values:
    """Applies `normalise` to each label's values separately and returns the results in the original order: (N,)."""
    places: dict[Hashable, list[int]] = {}
    for place, label in enumerate(labels):
        places.setdefault(label, []).append(place)
    out = np.zeros(len(values), dtype=np.float64)
    for indices in places.values():
        out[indices] = normalise(values[indices])
    return out


def centred(values: Values) -> Values:
    """Subtracts the mean. Equal values, and a single one, give exactly 0."""
    return values - values.mean() if len(values) > 1 and np.ptp(values) > 0 else np.zeros_like(values)


def standardised(values: Values, epsilon: float = 1e-6, ddof: int = 0) -> Values:
    """Subtracts the mean and divides by the standard deviation + `epsilon`.

    The deviation is the population's, or with `ddof = 1` the sample's. Equal values give exactly 0.
    """
    difference = centred(values)
    return difference / (values.std(ddof=ddof) + epsilon) if difference.any() else difference


def credit_trajectories(group: Group, advantages: Values) -> list[Credit]:
    """Gives all tokens of a trajectory the same advantage, from one advantage per trajectory (G,)."""
    return [Credit.uniform(t, float(advantage)) for t, advantage in zip(group.trajectories, advantages, strict=True)]


def credit_turns(group: Group, advantages: Values) -> list[Credit]:
    """Gives all tokens of a turn the same advantage, from one advantage per turn of the group."""
    parts = split_turns(group, advantages)
    return [Credit.per_turn(t, part) for t, part in zip(group.trajectories, parts, strict=True)]
