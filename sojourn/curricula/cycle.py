"""The tasks in their own order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.config.fields import NONBLANK
from sojourn.types import Group, Score, Task


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """Slot k plays task k of the split, cycling through it; redraws play tasks further on, spread over the split
    (`redraw_offset`)."""

    split: Annotated[str, NONBLANK] = "train"

    def bind(self, tasks: Sequence[Task], seed: int) -> BoundCycle:
        return BoundCycle(tasks)


@dataclass(frozen=True)
class BoundCycle:
    tasks: Sequence[Task]

    def draw(self, slot: int, redraw: int = 0) -> Task:
        return self.tasks[(slot + redraw_offset(redraw, len(self.tasks))) % len(self.tasks)]

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        """Does nothing: the order does not depend on scores."""


def redraw_offset(redraw: int, count: int) -> int:
    """Returns how many tasks further on than its slot a redraw plays: 0 without one, then 1/2, 1/4, 3/4, 1/8 ... of all
    `count` tasks, which is the van der Corput sequence without numbers that come twice.

    The first 2^k of these are at least floor(count / 2^k) apart. So where a step's slots, times the smallest power of
    two that is above the number of redraws, are at most `count`, all slots and redraws of the step play different
    tasks. A slot plays every task once before it plays one again.
    """
    redraw %= count
    sequence = (count * int(f"{n:b}"[::-1], 2) >> n.bit_length() for n in range(2 * redraw + 2))
    return list(dict.fromkeys(sequence))[redraw]
