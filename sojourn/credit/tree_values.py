"""Values of turns from the plays that branched after them, and advantages of these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sojourn.credit.relative import GroupEstimator, Values, seats, trajectory_returns
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True, kw_only=True)
class TreeValues(GroupEstimator):
    """The value of a turn is the mean return of the plays that share it, its leaves (Monte Carlo, as in VinePPO:
    Kazemnejad et al. 2024, arXiv:2410.01679; with `value = "max"` the largest one), and its advantage how far that is
    above the value before.

    Turns with the same leaves, those between two forks, are told apart by nothing and have the same advantage.
    `against` says what it is measured from: "parent", the value of the turns before the last fork, which for the first
    ones is the mean return of all plays of the seat in the group; "group", always that mean; "both", the sum of the two
    differences. With `by_leaves` it is divided by the root of the number of leaves, so that turns which many plays
    share do not count that often: with "both" these are the global and local advantages of TreeRL (Hou et al. 2025,
    arXiv:2506.11902, section 3).

    Without branches the advantage is the return minus its mean. A turn that several plays share has the same in each.
    """

    value: Literal["mean", "max"] = "mean"
    against: Literal["parent", "group", "both"] = "parent"
    by_leaves: bool = False

    unverified = "accounts of TreeRL were read, not its equations"

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        returns, names = trajectory_returns(scores), np.array(seats(group), dtype=object)
        leaves = defaultdict[tuple[int, int], list[int]](list)
        for number, holders in enumerate(group.holders):
            for turn, holder in enumerate(holders):
                leaves[holder, turn].append(number)
        return [
            Credit.per_turn(
                trajectory,
                self._advantages(
                    [returns[leaves[holder, turn]] for turn, holder in enumerate(holders)],
                    float(returns[names == trajectory.agent].mean()),
                ),
            )
            for trajectory, holders in zip(group.trajectories, group.holders, strict=True)
        ]

    def _advantages(self, returns: Sequence[Values], mean: float) -> list[float]:
        """Returns the advantage of each turn of a trajectory: (T,), from the returns of its leaves."""
        advantages: list[float] = []
        before = value = mean
        for number, of_leaves in enumerate(returns):
            if not number or len(of_leaves) != len(returns[number - 1]):  # the first turn, or a fork before it
                before, value = value, float(of_leaves.max() if self.value == "max" else of_leaves.mean())
            differences = {"parent": value - before, "group": value - mean, "both": 2 * value - before - mean}
            advantages.append(differences[self.against] / (np.sqrt(len(of_leaves)) if self.by_leaves else 1))
        return advantages
