"""The tasks in their own order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.config.fields import NONBLANK
from sojourn.types import Group, Score, Task


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """Slot k plays task k of the split, cycling through it; a redraw plays a task half of the split further on."""

    split: Annotated[str, NONBLANK] = "train"

    def bind(self, tasks: Sequence[Task], seed: int) -> BoundCycle:
        return BoundCycle(tasks)


@dataclass(frozen=True)
class BoundCycle:
    tasks: Sequence[Task]

    def draw(self, slot: int, redraw: int = 0) -> Task:
        return self.tasks[(slot + redraw * (len(self.tasks) // 2 + 1)) % len(self.tasks)]

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        """Does nothing: the order does not depend on scores."""
