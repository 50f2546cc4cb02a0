"""Shares the draws of a curriculum between groups of tasks: those of a world, of a tag, or of a value in their data."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from sojourn.config.fields import Kind
from sojourn.curricula.learnability import Learnability
from sojourn.curricula.task_history import UNTAGGED, Array, TaskHistory
from sojourn.curricula.weighted import (
    Weighs,
    WeighsSplit,
    WeightedCurriculum,
    normalised,
    predicted,
    require_weighs,
)
from sojourn.errors import ConfigError
from sojourn.types import IntArray, Task


@dataclass(frozen=True, kw_only=True)
class OverBase:
    """Base of curricula that share the draws between groups of tasks: the split, the pool, the uniform fraction, and
    what is expected of each task are those of `base`."""

    base: Annotated[WeighsSplit, Kind("curriculum")] = field(default_factory=Learnability)

    def __post_init__(self) -> None:
        require_weighs(self.base)

    @property
    def split(self) -> str:
        return self.base.split

    @property
    def max_tasks(self) -> int:
        return self.base.max_tasks

    @property
    def uniform(self) -> float:
        return self.base.uniform

    def bind(self, tasks: Sequence[Task], seed: int) -> WeightedCurriculum:
        return WeightedCurriculum(self, tasks, seed)

    def predicted(self, history: TaskHistory) -> Array:
        return predicted(self.base, history)

    @abstractmethod
    def weights(self, history: TaskHistory) -> Array: ...


def members(history: TaskHistory, by: str) -> dict[str, IntArray]:
    """Returns the numbers of the tasks of each world with `by = "world"`, of each tag with "tag" (tasks may have
    several), or of each value of the key `by` of `Task.data`; sorted as numbers where they end in one."""
    found: dict[str, list[int]] = {}
    for index, task in enumerate(history.tasks):
        for label in _labels(task, by):
            found.setdefault(label, []).append(index)
    if not found:
        keys = sorted({key for task in history.tasks[:100] for key in task.data})
        raise ConfigError(
            f"the curriculum's by = '{by}': no task of the pool has '{by}' in its data; expected 'world', 'tag', or a "
            f"key of the data, such as {', '.join(keys[:8]) or 'one that the world gives'}"
        )
    return {label: np.array(found[label], dtype=np.int64) for label in sorted(found, key=_order)}


def shared(history: TaskHistory, base: Weighs, groups: Mapping[str, IntArray], shares: Sequence[float]) -> Array:
    """Returns the weight of each task where a group of tasks takes its share of the draws, and its tasks share that as
    `base` weighs them: (n,)."""
    inside, weights = np.nan_to_num(base.weights(history)), np.zeros(history.count)
    for tasks, share in zip(groups.values(), shares, strict=True):
        weights[tasks] += share * normalised(inside[tasks])
    return weights


def _labels(task: Task, by: str) -> Sequence[str]:
    if by == "world":
        return (task.env,)
    if by == "tag":
        return task.tags or (UNTAGGED,)
    return (str(task.data[by]),) if by in task.data else ()


def _order(label: str) -> tuple[str, float, str]:
    number = re.search(r"(^-)?\d+(\.\d+)?$", label)
    return (label[: number.start()], float(number.group()), label) if number else (label, 0.0, label)
