"""Forks at regular distances, whatever was played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.branching.budget import TreeBudget
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.config.fields import Range


@dataclass(frozen=True, kw_only=True)
class Uniform(TreeBudget):
    """Forks every play after each `every` turns, up to `depth` times on the way to a leaf: `width` plays go on from
    there, the one that came included. So a play that lasts long enough becomes `width` to the power of `depth` leaves,
    but never more than `leaves`."""

    every: Annotated[int, Range(1)] = 2
    width: Annotated[int, Range(2)] = 2
    depth: Annotated[int, Range(1)] = 3

    def __call__(self, point: BranchPoint) -> Sequence[Fork]:
        if point.over or not point.turn or point.turn % self.every or point.forks >= self.depth:
            return ()
        return (Fork(point.turn, self.width - 1, f"every {self.every} turns"),)
