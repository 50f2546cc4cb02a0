"""Worlds whose tasks are their fields and a seed: how those are listed, and how fields are kept within bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from sojourn.errors import ConfigError
from sojourn.tasks import Generated
from sojourn.types import Task

SPLITS = ("train", "test")
SIZES = {"train": (1, 10**9), "test": (1, 10**9)}  # bounds of the fields that say how many tasks there are
F = TypeVar("F")


def tasks_of(world: str, family: Any, split: str) -> Sequence[Task]:
    """As many tasks as the field named like the split says; each carries all other fields, and a seed of its own."""
    if split not in SPLITS:
        raise ConfigError(f'{world}: there is no split "{split}", use "train" or "test"')
    data = {field.name: getattr(family, field.name) for field in fields(family) if field.name not in SPLITS}
    first = 0 if split == "train" else 10**9
    return Generated(lambda index: Task(world, data, first + index, split), getattr(family, split))


def of_task(family: F, task: Task) -> F:
    """The family with the fields that the task carries, so that a task file can mix them."""
    known = {field.name for field in fields(family)}  # type: ignore[arg-type]
    if unknown := sorted(task.data.keys() - known):
        raise ConfigError(f"{task.env}: a task has the field {unknown[0]!r}, but there are {', '.join(sorted(known))}")
    return replace(family, **task.data)  # type: ignore[type-var]


def require_within(world: str, family: Any, limits: Mapping[str, tuple[float, float]]) -> None:
    for name, (low, high) in limits.items():
        value = getattr(family, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise ConfigError(
                f"{world}: {name} = {value!r}, but it must be from {low:g} to {high:g} with the other fields given"
            )


def require_one_of(world: str, family: Any, options: Mapping[str, Sequence[str]]) -> None:
    for name, known in options.items():
        if (value := getattr(family, name)) not in known:
            raise ConfigError(f"{world}: {name} = {value!r}, but it must be one of {', '.join(known)}")
