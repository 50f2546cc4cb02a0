"""What estimators of turns share: returns-to-go, values of all turns of a group, and credit from their advantages.

Axis letters: T turns of a trajectory, N values of any kind.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sojourn.credit.relative import Values
from sojourn.types import Credit, FloatArray, Group, Score


def returns_to_go(score: Score, discount: float) -> Values:
    """Returns the discounted return from each turn on: (T,)."""
    return discounted_sums(score.turns.astype(np.float64), discount)


def discounted_sums(values: Values, discount: float) -> Values:
    """Returns, for each place t, the sum of discount^(k - t) values[k] over k >= t: (N,)."""
    running, sums = 0.0, np.zeros(len(values))
    for place in reversed(range(len(values))):
        running = sums[place] = values[place] + discount * running
    return sums


def seats_of_turns(group: Group) -> list[str]:
    """Returns the seat that took each turn of the group, trajectory after trajectory."""
    return [trajectory.agent for trajectory in group.trajectories for _ in trajectory.turns]


def concatenated(arrays: Iterable[Values | FloatArray]) -> Values:
    """Returns the arrays as one; no arrays give shape (0,)."""
    return np.concatenate([np.zeros(0), *arrays], dtype=np.float64)


def split_turns(group: Group, values: Values) -> list[Values]:
    """Splits one value per turn of the group by trajectory: (T,) each."""
    ends = np.cumsum([len(trajectory.turns) for trajectory in group.trajectories])
    return np.split(values, ends[:-1]) if len(ends) else []


def credit_turns(group: Group, advantages: Values) -> list[Credit]:
    """Gives all tokens of a turn the same advantage, from one advantage per turn of the group."""
    parts = split_turns(group, advantages)
    return [Credit.per_turn(t, part) for t, part in zip(group.trajectories, parts, strict=True)]
