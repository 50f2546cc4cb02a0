"""The tasks in random order, each once per pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.curricula.cycle import redraw_offset
from sojourn.types import Group, IntArray, Score, Task


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
        order = _order(self.seed, pass_number, self.count, self.block)
        return self.tasks[int(order[(place + redraw_offset(redraw, self.count)) % self.count])]

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        """Does nothing: the order does not depend on scores."""


@lru_cache(maxsize=4)  # every draw of a pass reads it
def _order(seed: int, pass_number: int, count: int, block: int) -> IntArray:
    """Returns the numbers of the tasks (`count`,) in the order of a pass."""
    blocks = np.random.default_rng([seed, pass_number]).permutation(-(-count // block))
    order = (blocks[:, None] * block + np.arange(block)).ravel()
    return order[order < count]  # the last block may be shorter
