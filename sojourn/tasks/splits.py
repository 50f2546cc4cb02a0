"""Helps worlds to make their tasks by split, from seeds that the splits do not share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from hashlib import sha256
from random import Random
from typing import Any, TypeVar

from sojourn.errors import ConfigError
from sojourn.tasks import Generated
from sojourn.types import Task

SPLITS = ("train", "test")
FIRST_TEST = 10**9  # the seeds of the test split begin here
F = TypeVar("F")
T = TypeVar("T")


def first_seed(world: str, split: str) -> int:
    """Returns the seed of the split's first task."""
    if split not in SPLITS:
        raise ConfigError(f'{world}: unknown split "{split}": expected "train" or "test"')
    return 0 if split == "train" else FIRST_TEST


def make_tasks(world: str, family: Any, split: str, make: Callable[[int], Task]) -> Sequence[Task]:
    """Returns the tasks of a split, each made from its seed; `family.train` and `family.test` say how many."""
    first = first_seed(world, split)
    return Generated(lambda index: make(first + index), getattr(family, split))


ATTEMPTS = 1_000  # draws of a task: of a hundred contents none would be missed


def make_tasks_from_data(
    world: str, family: Any, split: str, data: Mapping[str, Any] | Callable[[int], Mapping[str, Any]]
) -> Sequence[Task]:
    """Returns the tasks of a split whose data are constant, or follow from their seed."""
    of_seed = data if callable(data) else lambda seed: data
    return make_tasks(world, family, split, lambda seed: Task(world, dict(of_seed(seed)), seed, split))


def make_tasks_by_kind(
    world: str, family: Any, split: str, kinds: Sequence[str], data: Callable[[str], Mapping[str, Any]]
) -> Sequence[Task]:
    """Returns the tasks of a split whose kinds alternate; each task is tagged with its kind."""

    def make(seed: int) -> Task:
        kind = kinds[seed % FIRST_TEST % len(kinds)]
        return Task(world, dict(data(kind)), seed, split, (kind,))

    return make_tasks(world, family, split, make)


def make_tasks_from_fields(world: str, family: Any, split: str) -> Sequence[Task]:
    """Returns the tasks of a split whose data are all fields of the family, except the sizes of its splits."""
    names = [field.name for field in fields(family) if field.name not in SPLITS]
    return make_tasks_from_data(world, family, split, {name: getattr(family, name) for name in names})


def family_of_task(family: F, task: Task) -> F:
    """Returns the family with the fields from the task's data, so that a task file can mix families' settings."""
    known = {field.name for field in fields(family)}  # type: ignore[arg-type]
    if unknown := sorted(task.data.keys() - known):
        known_names = ", ".join(sorted(known))
        raise ConfigError(f"{task.env}: a task has the unknown field {unknown[0]!r}: expected some of {known_names}")
    return replace(family, **task.data)  # type: ignore[type-var]


def draw_for_seed(seed: int, key: str, draw: Callable[[Random], T], content: Callable[[T], str]) -> T:
    """Draws as `draw_for_split` does, for a task of which the seed alone is known, which tells its split."""
    split = "test" if seed >= FIRST_TEST else "train"
    return draw_for_split(Task(key, {}, seed, split), key, draw, lambda drawn: content(drawn).encode())


def draw_for_split(task: Task, key: str, draw: Callable[[Random], T], content: Callable[[T], bytes]) -> T:
    """Draws until the hash of the drawn content belongs to the task's split, so that no content is in both splits.

    A quarter of all contents belongs to the test split. The random numbers follow from `key`, the task's seed and the
    number of the attempt. Raises `ConfigError` where there are so few contents that none belongs to the split.
    """
    for attempt in range(ATTEMPTS):
        drawn = draw(Random(f"{key} {task.seed} {attempt}"))
        if (sha256(content(drawn)).digest()[0] % 4 == 0) == (task.split == "test"):
            return drawn
    raise ConfigError(
        f"{task.env}: none of {ATTEMPTS:,} tasks that were drawn belongs to the split '{task.split}', as with these "
        "settings there are too few that differ: choose larger ones"
    )
