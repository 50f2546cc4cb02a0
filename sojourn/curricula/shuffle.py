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

    Blocks of `block` tasks that follow each other are shuffled as wholes: of a split in which 8 kinds of tasks take
    turns, blocks of 8 keep the kinds balanced. Redraws play tasks further on in the order of the slot's pass, spread
    over it as in `cycle`.
    """

    split: Annotated[str, NONBLANK] = "train"
    max_tasks: Annotated[int, Range(0)] = 0
    block: Annotated[int, Range(1)] = 1

    def bind(self, tasks: Sequence[Task], seed: int) -> BoundShuffle:
        count = min(self.max_tasks or len(tasks), len(tasks), 1 << 20)
        return BoundShuffle(tasks, count, seed, self.block)


@dataclass(frozen=True)
class BoundShuffle:
    tasks: Sequence[Task]
    count: int
    seed: int
    block: int = 1

    def draw(self, slot: int, redraw: int = 0) -> Task:
        pass_number, place = divmod(slot, self.count)
        blocks = np.random.default_rng([self.seed, pass_number]).permutation(-(-self.count // self.block))
        order = (blocks[:, None] * self.block + np.arange(self.block)).ravel()
        order = order[order < self.count]  # the last block may be shorter
        return self.tasks[int(order[(place + redraw_offset(redraw, self.count)) % self.count])]

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        """Does nothing: the order does not depend on scores."""
