"""The tasks in random order, each once per pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.curricula.cycle import redraw_offset
from sojourn.types import Group, Score, Task


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """Slots play the first `max_tasks` tasks of the split (0: all), each once per pass, in an order that the seed and
    the pass decide.

    Redraws play tasks further on in the order of the slot's pass, spread over it as in `cycle`.
    """

    split: Annotated[str, NONBLANK] = "train"
    max_tasks: Annotated[int, Range(0)] = 0

    def bind(self, tasks: Sequence[Task], seed: int) -> BoundShuffle:
        count = min(self.max_tasks or len(tasks), len(tasks), 1 << 20)
        return BoundShuffle(tasks, count, seed)


@dataclass(frozen=True)
class BoundShuffle:
    tasks: Sequence[Task]
    count: int
    seed: int

    def draw(self, slot: int, redraw: int = 0) -> Task:
        pass_number, place = divmod(slot, self.count)
        order = np.random.default_rng([self.seed, pass_number]).permutation(self.count)
        return self.tasks[int(order[(place + redraw_offset(redraw, self.count)) % self.count])]

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        """Does nothing: the order does not depend on scores."""
