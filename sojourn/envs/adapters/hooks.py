"""The functions that a user names in a config, "module:function"."""

from __future__ import annotations

from typing import Any

from sojourn.envs.calls import settled as settled
from sojourn.errors import ConfigError
from sojourn.registry import named
from sojourn.tasks.splits import first_seed


def called(path: str, where: str) -> Any:
    """What "module:name" names, where it has to be something that can be called."""
    found = named(path, where)
    if not callable(found):
        raise ConfigError(f'{where} = "{path}" is {type(found).__name__}, but it must be a function or a class')
    return found


def require(world: str, split: str, **sizes: int) -> None:
    """Refuses a split that is not there; `sizes` are fields that have to be at least 1."""
    first_seed(world, split)
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{world}: {name} = {size}, but it must be at least 1")
