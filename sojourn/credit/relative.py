"""What estimators have in common that compare trajectories, or turns, with others of their kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sojourn.types import Credit, Group, Score, Streams

Values = NDArray[np.float64]
Normalise = Callable[[Values], Values]  # of comparable values, what each is worth beside the others


class GroupEstimator:
    """An estimator that looks at each group by itself."""

    needs: ClassVar[frozenset[str]] = frozenset()
    min_group_size: ClassVar[int] = 2  # episodes of a group: a lone one has zero credit

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        return [self._one(group, judged) for group, judged in zip(groups, scores, strict=True)]

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        raise NotImplementedError


def trajectory_returns(judged: Sequence[Score]) -> Values:
    """The return of each trajectory: (G,)."""
    return np.array([score.total for score in judged], dtype=np.float64)


def returns_to_go(score: Score, discount: float) -> Values:
    """The discounted reward from each turn on: (T,)."""
    return discounted_sums(score.turns.astype(np.float64), discount)


def discounted_sums(values: Values, discount: float) -> Values:
    """The discounted sum from each on: (T,)."""
    going, out = 0.0, np.zeros(len(values))
    for turn in reversed(range(len(values))):
        going = out[turn] = values[turn] + discount * going
    return out


def seats(group: Group) -> list[str]:
    """Who played each trajectory: those of one seat are comparable."""
    return [trajectory.agent for trajectory in group.trajectories]


def seats_of_turns(group: Group) -> list[str]:
    """Who took each turn of the group, trajectory by trajectory."""
    return [trajectory.agent for trajectory in group.trajectories for _ in trajectory.turns]


def concatenated(arrays: Iterable[Values]) -> Values:
    """One after another: (0,) for none."""
    return np.concatenate([np.zeros(0), *arrays])


def split_turns(group: Group, values: Values) -> list[Values]:
    """A value for each turn of the group, given back to the trajectories: (T,) each."""
    ends = np.cumsum([len(trajectory.turns) for trajectory in group.trajectories])
    return np.split(values, ends[:-1]) if len(ends) else []


def per_label(labels: Iterable[Hashable], values: Values, gain: Normalise) -> Values:
    """What each value is worth beside those of its label, in their places."""
    places: dict[Hashable, list[int]] = {}
    for place, label in enumerate(labels):
        places.setdefault(label, []).append(place)
    out = np.zeros(len(values), dtype=np.float64)
    for some in places.values():
        out[some] = gain(values[some])
    return out


def centred(values: Values) -> Values:
    """Less their mean. Values that are all alike give 0 exactly."""
    return values - values.mean() if len(values) > 1 and np.ptp(values) > 0 else np.zeros_like(values)


def standardised(values: Values, epsilon: float = 1e-6, ddof: int = 0) -> Values:
    """Less their mean, over their deviation + `epsilon`: the population's, or with `ddof` 1 the sample's."""
    gain = centred(values)
    return gain / (values.std(ddof=ddof) + epsilon) if gain.any() else gain


def credit_trajectories(group: Group, gain: Values) -> list[Credit]:
    """One advantage for all tokens of each trajectory, from (G,)."""
    return [Credit.uniform(t, float(g)) for t, g in zip(group.trajectories, gain, strict=True)]


def credit_turns(group: Group, gain: Values) -> list[Credit]:
    """One advantage for all tokens of each turn, from those of all turns of the group."""
    return [Credit.per_turn(t, part) for t, part in zip(group.trajectories, split_turns(group, gain), strict=True)]
