"""How a world lists its tasks: by split, and by seeds that the splits do not share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from hashlib import sha256
from itertools import count
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
    """The seed of the split's first task."""
    if split not in SPLITS:
        raise ConfigError(f'{world}: there is no split "{split}", use "train" or "test"')
    return 0 if split == "train" else FIRST_TEST


def by_seed(world: str, family: Any, split: str, make: Callable[[int], Task]) -> Sequence[Task]:
    """`family.train` or `family.test` tasks, each made from its seed."""
    first = first_seed(world, split)
    return Generated(lambda index: make(first + index), getattr(family, split))


def seeded(
    world: str, family: Any, split: str, data: Mapping[str, Any] | Callable[[int], Mapping[str, Any]]
) -> Sequence[Task]:
    """The same, where tasks differ by their seed alone, or by data that follow from it."""
    of_seed = data if callable(data) else lambda seed: data
    return by_seed(world, family, split, lambda seed: Task(world, dict(of_seed(seed)), seed, split))


def in_turns(
    world: str, family: Any, split: str, kinds: Sequence[str], data: Callable[[str], Mapping[str, Any]]
) -> Sequence[Task]:
    """The same, where tasks are of several kinds, which take turns; each is tagged with its own."""

    def make(seed: int) -> Task:
        kind = kinds[seed % FIRST_TEST % len(kinds)]
        return Task(world, dict(data(kind)), seed, split, (kind,))

    return by_seed(world, family, split, make)


def tasks_of(world: str, family: Any, split: str) -> Sequence[Task]:
    """The same, where each carries all fields of its family, but those that say how many tasks there are."""
    names = [field.name for field in fields(family) if field.name not in SPLITS]
    return seeded(world, family, split, {name: getattr(family, name) for name in names})


def of_task(family: F, task: Task) -> F:
    """The family with the fields that the task carries, so that a task file can mix them."""
    known = {field.name for field in fields(family)}  # type: ignore[arg-type]
    if unknown := sorted(task.data.keys() - known):
        raise ConfigError(f"{task.env}: a task has the field {unknown[0]!r}, but there are {', '.join(sorted(known))}")
    return replace(family, **task.data)  # type: ignore[type-var]


def of_its_split(task: Task, key: str, draw: Callable[[Random], T], content: Callable[[T], bytes]) -> T:
    """The first of what is drawn for a task whose own hash falls to the task's split, so that nothing is in both.

    A quarter of all falls to the test split. `key` names what chance follows from beside seed and attempt.
    """
    for attempt in count():
        found = draw(Random(f"{key} {task.seed} {attempt}"))
        if (sha256(content(found)).digest()[0] % 4 == 0) == (task.split == "test"):
            return found
    raise AssertionError("unreachable: count() does not end")
