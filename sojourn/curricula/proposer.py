"""The role of what proposes tasks to a curriculum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from sojourn.abilities import Bounds, MakesTasks
from sojourn.curricula.task_history import TaskHistory
from sojourn.types import Task

SEEDS = 10**9  # the seeds of tasks that are made are below this


class Proposer(Protocol):
    """Proposes tasks that are made of what was played, one at a time.

    `propose` returns a task that the world made of the data that are proposed; None where it made none. `parent` is the
    number of a task of the history that taught much, and all that is drawn at random is drawn from `rng`, so that a
    resumed run proposes the same. The world says whether a task can be solved (`MakesTasks`). `check` raises
    `ConfigError` before the run where the proposer cannot work with the numbers that the world lets it change.
    """

    def check(self, bounds: Mapping[str, Bounds]) -> None: ...
    def propose(
        self, history: TaskHistory, parent: int, world: MakesTasks, rng: np.random.Generator
    ) -> Task | None: ...
