"""What the families of worlds check of their fields, and how the seeds of their splits are numbered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Annotated, Any, get_type_hints

from sojourn.errors import ConfigError
from sojourn.registry import Range, convert
from sojourn.tasks import Generated
from sojourn.types import Task

Count = Annotated[int, Range(1, 10**9)]
FIRST_TEST = 10**9  # the seeds of the test split begin here


def check_fields(world: str, family: Any) -> None:
    """Every field of a family is what its annotation says, whoever makes it."""
    for name, hint in _hints(type(family)).items():
        value = getattr(family, name)
        convert(hint, list(value) if isinstance(value, tuple) else value, f"{world}: {name}")


@lru_cache(64)
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def check_names(world: str, field: str, names: Collection[str], known: Collection[str]) -> None:
    """A field that lists names: at least one, none twice, each of them known."""
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"{world}: {field} = {list(names)}, but it must list different names, at least one")
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"{world}: {field} lists {unknown[0]!r}, but the names are {', '.join(known)}")


def by_seed(world: str, split: str, sizes: tuple[int, int], make: Callable[[int], Task]) -> Sequence[Task]:
    """As many tasks as `sizes` says of (train, test), each made from its seed; the splits' seeds differ."""
    if split not in ("train", "test"):
        raise ConfigError(f'{world}: there is no split "{split}", use "train" or "test"')
    first, size = (0, sizes[0]) if split == "train" else (FIRST_TEST, sizes[1])
    return Generated(lambda index: make(first + index), size)
