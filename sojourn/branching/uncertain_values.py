"""Forks finished plays where the critic is least sure, or was wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from sojourn.branching.budget import TreeBudget
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.config.fields import Range


@dataclass(frozen=True, kw_only=True)
class UncertainValues(TreeBudget):
    """Forks each play at its end, before each of the `count` own turns at which the critic was least sure.

    How unsure it was follows from the returns V that it expected before the turns, by `measure`: the "variance"
    V (1 - V) of a success which is so likely, V being bounded by 0 and 1; or the "surprise", the size of the temporal
    difference r + V' - V of what the turn earned and was followed by (Sutton and Barto 2018, eq. 6.5, undiscounted; V'
    is that of the seat's next turn, 0 after its last): what was done there changed what is to be expected.

    The plays that one gave rise to do the same, up to `depth` forks on a path. The first turn of the task is not
    chosen, as that would be another root, and neither is one of which nothing is unsure. No paper chooses turns so;
    those that fork by certainty ask the policy's entropy (`uncertain_turns`). Needs a table [critic].
    """

    count: Annotated[int, Range(1)] = 2
    depth: Annotated[int, Range(1)] = 1
    measure: Literal["variance", "surprise"] = "variance"

    asks_critic = True

    def __call__(self, point: BranchPoint) -> Sequence[Fork]:
        if not point.over or point.forks >= self.depth:
            return ()
        unsure = _variances(point) if self.measure == "variance" else _surprises(point)
        own = [number for number in range(max(point.began, 1), len(unsure)) if unsure[number] > 0]
        chosen = sorted(own, key=lambda number: -unsure[number])[: self.count]
        return [Fork(number, 1, f"{self.measure} {unsure[number]:.2g} of the value") for number in sorted(chosen)]


def _variances(point: BranchPoint) -> list[float]:
    return [float(value * (1 - value)) for value in np.clip(point.values, 0, 1)]


def _surprises(point: BranchPoint) -> list[float]:
    found = [0.0] * len(point.values)
    for name, trajectory in point.trajectories.items():
        numbers = [number for number, actor in enumerate(point.actors) if actor == name]
        values = [*(point.values[number] for number in numbers), 0.0]
        for place, (number, turn) in enumerate(zip(numbers, trajectory.turns, strict=False)):
            found[number] = abs(turn.reward + values[place + 1] - values[place])
    return found
