"""Functions that a user names in a config as "module:function"."""

from __future__ import annotations

from typing import Any

from sojourn.config.lookup import import_object
from sojourn.errors import ConfigError


def called(path: str, where: str) -> Any:
    """Returns the callable that "module:name" names; raises `ConfigError` where there is none."""
    hook = import_object(path, where)
    if not callable(hook):
        raise ConfigError(f'{where} = "{path}" is {type(hook).__name__}, but it must be a function or a class')
    return hook
