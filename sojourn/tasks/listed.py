"""Checks the tasks that a world gives, so that its author learns what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sojourn.errors import ConfigError
from sojourn.types import Task


def listed(family: Any, split: str) -> Sequence[Task]:
    """Returns the tasks of a split; raises `ConfigError` if they are no sequence or the first of them is unusable."""
    tasks = family.tasks(split)
    is_sequence = hasattr(tasks, "__len__") and hasattr(tasks, "__getitem__")
    if not is_sequence or isinstance(tasks, str | bytes | Mapping):
        raise ConfigError(
            f"{type(family).__name__}.tasks('{split}') gives a {type(tasks).__name__}: expected a sequence of tasks, "
            "such as a list"
        )
    if len(tasks):
        check_task(tasks[0])
    return tasks


def some_tasks(family: Any, split: str) -> Sequence[Task]:
    """Returns the tasks of a split as `listed` does; raises `ConfigError` if there are none."""
    tasks = listed(family, split)
    if not len(tasks):
        raise ConfigError(
            f"the split '{split}' of the world has no tasks: give it some (of a class that lists `tasks`, every fifth "
            "is a test task: give five or more, or a mapping from splits to tasks)"
        )
    return tasks


def check_task(task: Any) -> None:
    """Raises `ConfigError` for anything but a task that can be recorded as JSON."""
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
