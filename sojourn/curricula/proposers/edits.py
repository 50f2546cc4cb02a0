"""Small changes of tasks that taught much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from sojourn.abilities import Bounds, MakesTasks
from sojourn.config.fields import Range
from sojourn.curricula.proposer import SEEDS
from sojourn.curricula.task_history import TaskHistory
from sojourn.errors import ConfigError
from sojourn.types import Task

Limits = dict[str, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Edits:
    """Proposes a task whose data differ a little from those of its parent, as ACCEL's random editor does
    (Parker-Holder et al. 2022, arXiv:2203.01302, whose code of the walker this follows).

    Each of `edits` changes takes one of the numbers that may be changed, and adds a step to it, subtracts one, or
    leaves it; no number leaves the bounds of the world. `limits`, such as {rooms = [2, 8]}, names the numbers that may
    be changed, with narrower bounds; without it, all that the world allows are. The seed is drawn anew, as the authors
    do in that world: what the data leave open differs, too.
    """

    edits: Annotated[int, Range(1, 1000)] = 3
    limits: Mapping[str, tuple[float, float]] = field(default_factory=Limits)

    def check(self, bounds: Mapping[str, Bounds]) -> None:
        for key, (low, high) in self.limits.items():
            if key not in bounds:
                raise ConfigError(
                    f"edits: limits name '{key}', but the numbers that the world lets a curriculum change are "
                    f"{', '.join(bounds) or 'none'}"
                )
            if not low <= high or high < bounds[key].low or low > bounds[key].high:
                raise ConfigError(
                    f"edits: limits of '{key}' are from {low:g} to {high:g}: expected bounds within "
                    f"{bounds[key].low:g} to {bounds[key].high:g}, the lower one first"
                )

    def propose(self, history: TaskHistory, parent: int, world: MakesTasks, rng: np.random.Generator) -> Task | None:
        like = history.pool[parent]
        bounds = self._within(world.bounds(like))
        if not bounds:
            return None
        data, keys = dict(like.data), sorted(bounds)
        for _ in range(self.edits):
            key, direction = keys[int(rng.integers(len(keys)))], int(rng.integers(-1, 2))
            data[key] = _moved(data[key], direction, bounds[key])
        return world.make_task(like, data, int(rng.integers(SEEDS)))

    def _within(self, bounds: Mapping[str, Bounds]) -> dict[str, Bounds]:
        """Returns the bounds of the numbers that may be changed: those of the world, and of `limits`."""
        found = dict(bounds)
        for key, (low, high) in self.limits.items():
            if key in bounds:
                found[key] = Bounds(max(low, bounds[key].low), min(high, bounds[key].high), bounds[key].step)
        return {key: found[key] for key in self.limits if key in found} if self.limits else found


def _moved(value: float, direction: int, bounds: Bounds) -> float:
    """Returns a number a step further in a direction, within its bounds; whole numbers stay whole."""
    moved = min(max(value + direction * bounds.step, bounds.low), bounds.high)
    return round(moved) if isinstance(value, int) else round(moved, 6)
