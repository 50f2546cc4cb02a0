"""Levels that open one after another, as the policy solves those that are open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.curricula.by_label import OverBase, members, shared
from sojourn.curricula.task_history import Array, TaskHistory
from sojourn.errors import ConfigError
from sojourn.types import IntArray


@dataclass(frozen=True, kw_only=True)
class Levels(OverBase):
    """Draws tasks of the lowest level at first, and opens the next level when the highest open one is solved.

    The levels are the values of a key of the tasks' data, whose name `by` is (such as the `rooms` of the toy or the
    `size` of sokoban), or their tags with "tag", or their worlds with "world"; in the order of the numbers at their
    ends, or as `order` lists them, without those that it leaves out. A level is solved when at least `goal` of the
    episodes succeeded among the newest groups of its tasks in the last `window` steps, if these were at least
    `episodes`. A level that was ever played stays open. The highest open level takes the fraction `newest` of the
    draws, and those below share the rest alike; the tasks of a level share its draws as `base` weighs them. The split,
    the pool and the uniform fraction, which is of tasks of open levels, are those of `base`.
    """

    by: Annotated[str, NONBLANK] = "tag"
    order: tuple[str, ...] = ()
    goal: Annotated[float, Range(0, 1)] = 0.7
    episodes: Annotated[int, Range(1)] = 64
    window: Annotated[int, Range(1)] = 10
    newest: Annotated[float, Range(0, 1)] = 0.7

    def weights(self, history: TaskHistory) -> Array:
        levels = self._levels(history)
        names = list(levels)[: self.open(history, list(levels.values()))]
        older = (1 - self.newest) / max(len(names) - 1, 1)
        shares = [older] * (len(names) - 1) + [self.newest or float(len(names) == 1)]
        return shared(history, self.base, {name: levels[name] for name in names}, shares)

    def open(self, history: TaskHistory, levels: Sequence[IntArray]) -> int:
        """Returns how many levels are open."""
        lately = history.counted & (history.age <= self.window)
        episodes = np.where(lately, history.of.recent_episodes[:, -1], 0.0)
        successes = episodes * np.nan_to_num(history.of.recent[:, -1])
        for number, (tasks, above) in enumerate(pairwise(levels)):
            solved = episodes[tasks].sum() >= self.episodes
            solved &= successes[tasks].sum() >= self.goal * episodes[tasks].sum()
            if not (solved or history.seen[above].any()):
                return number + 1
        return len(levels)

    def _levels(self, history: TaskHistory) -> dict[str, IntArray]:
        levels = members(history, self.by)
        if unknown := [name for name in self.order if name not in levels]:
            raise ConfigError(
                f"levels: order names '{unknown[0]}', but the values of '{self.by}' in the first {history.count} tasks "
                f"are {', '.join(list(levels)[:12])}"
            )
        return {name: levels[name] for name in self.order} if self.order else levels
