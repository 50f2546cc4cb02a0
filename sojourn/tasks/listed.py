"""Checks the tasks of a world where they come from: its author is told what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sojourn.errors import ConfigError
from sojourn.types import Task


def listed(family: Any, split: str) -> Sequence[Task]:
    """The tasks of a split; ConfigError where the world gives no sequence, or the first of them cannot be used."""
    found = family.tasks(split)
    sequence = hasattr(found, "__len__") and hasattr(found, "__getitem__")
    if not sequence or isinstance(found, str | bytes | Mapping):
        raise ConfigError(
            f"{type(family).__name__}.tasks('{split}') gives a {type(found).__name__}: expected a sequence of tasks, "
            "such as a list"
        )
    if len(found):
        check_task(found[0])
    return found


def check_task(task: Any) -> None:
    """Raises ConfigError for what is no task, or one that no record can hold."""
    if not isinstance(task, Task):
        raise ConfigError(f"a world lists {task!r:.100} as a task: expected a sojourn.types.Task")
    if odd := [tag for tag in task.tags if not isinstance(tag, str)]:
        raise ConfigError(f"a task of the world '{task.env}' has the tag {odd[0]!r:.100}: expected text")
    try:
        _ = task.id
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"a task of the world '{task.env}' cannot be written as JSON ({type(error).__name__}: {error}): its data, "
            "env, seed and split are text, numbers, lists and mappings"
        ) from error
