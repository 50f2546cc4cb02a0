"""Checks the fields of an environment family, whoever makes it: each raises ConfigError with one sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Annotated, Any, get_type_hints

from sojourn.config.fields import Range
from sojourn.config.registry import convert
from sojourn.errors import ConfigError

Count = Annotated[int, Range(1, 10**9)]
SIZES = {"train": (1, 10**9), "test": (1, 10**9)}  # limits of the fields that give the number of tasks of a split


def check_fields(world: str, family: Any) -> None:
    """Checks every field of a family against its annotation."""
    for name, hint in _hints(type(family)).items():
        value = getattr(family, name)
        convert(hint, list(value) if isinstance(value, tuple) else value, f"{world}: {name}")


@lru_cache(64)
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def check_names(world: str, field: str, names: Collection[str], known: Collection[str]) -> None:
    """Checks a field that lists names: at least one, none twice, each of them known."""
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"{world}: {field} = {list(names)}, but it must list at least one of {', '.join(known)}, each once"
        )
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"{world}: {field} lists {unknown[0]!r}, but the names are {', '.join(known)}")


def require_within(world: str, family: Any, limits: Mapping[str, tuple[float, float]]) -> None:
    """Checks that fields are numbers within their limits, both included; a limit may depend on other fields."""
    for name, (low, high) in limits.items():
        value = getattr(family, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise ConfigError(
                f"{world}: {name} = {value!r}, but it must be from {low:g} to {high:g} with the other fields given"
            )


def require_one_of(world: str, family: Any, options: Mapping[str, Collection[str]]) -> None:
    """Checks that each field is one of its options."""
    for name, known in options.items():
        if (value := getattr(family, name)) not in known:
            text = f'"{value}"' if isinstance(value, str) else repr(value)
            raise ConfigError(f"{world}: {name} = {text}, but it must be one of {', '.join(known)}")
