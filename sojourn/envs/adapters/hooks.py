"""The functions that a user names in a config, "module:function"."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from sojourn.errors import ConfigError


def named(path: str, where: str) -> Any:
    """What "module:name" names; `where` is the key of the config, for the message when it names nothing."""
    module, _, names = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f'{where} = "{path}" cannot be imported ({error}): write "module:name"') from error
    return found


def called(path: str, where: str) -> Any:
    """The same, where it has to be something that can be called."""
    found = named(path, where)
    if not callable(found):
        raise ConfigError(f'{where} = "{path}" is {type(found).__name__}, but it must be a function or a class')
    return found


async def settled(value: Any) -> Any:
    """The value, waited for where a hook is a coroutine."""
    return await value if inspect.isawaitable(value) else value


def require(world: str, split: str, **sizes: int) -> None:
    """Refuses a split that is not there; `sizes` are fields that have to be at least 1."""
    if split not in ("train", "test"):
        raise ConfigError(f'{world}: there is no split "{split}", use "train" or "test"')
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{world}: {name} = {size}, but it must be at least 1")
