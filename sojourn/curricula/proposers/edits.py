"""Small changes of tasks that taught much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from sojourn.abilities import Bounds, MakesTasks
from sojourn.config.fields import Range
from sojourn.curricula.limits import Limits, check_limits, narrowed
from sojourn.curricula.proposer import SEEDS
from sojourn.curricula.task_history import TaskHistory
from sojourn.types import Task


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
    limits: Limits = field(default_factory=dict[str, tuple[float, float]])

    def check(self, bounds: Mapping[str, Bounds]) -> None:
        check_limits("edits", self.limits, bounds)

    def propose(self, history: TaskHistory, parent: int, world: MakesTasks, rng: np.random.Generator) -> Task | None:
        like = history.pool[parent]
        bounds = narrowed(world.bounds(like), self.limits)
        if not bounds:
            return None
        data, keys = dict(like.data), sorted(bounds)
        for _ in range(self.edits):
            key, direction = keys[int(rng.integers(len(keys)))], int(rng.integers(-1, 2))
            data[key] = _moved(data[key], direction, bounds[key])
        return world.make_task(like, data, int(rng.integers(SEEDS)))


def _moved(value: float, direction: int, bounds: Bounds) -> float:
    """Returns a number a step further in a direction, within its bounds; whole numbers stay whole."""
    moved = min(max(value + direction * bounds.step, bounds.low), bounds.high)
    return round(moved) if isinstance(value, int) else round(moved, 6)
