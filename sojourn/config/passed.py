"""Objects that a Python program passes where a config has the table of a component.

A config that is written down names such an object, as `passed:` and what it was; only the program that passed it can
build it again.
"""

from __future__ import annotations

from typing import Any

from sojourn.errors import ConfigError

PREFIX = "passed:"
_objects: dict[str, Any] = {}  # of this process, by their names


def name_of(value: Any) -> str:
    """Keeps an object and returns the name that stands for it in a config; the same object keeps its name."""
    known = next((name for name, held in _objects.items() if held is value), "")
    if known:
        return known
    described = (
        value if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")) else type(value)
    )
    name = f"{PREFIX}{described.__module__}.{described.__qualname__}#{len(_objects) + 1}"
    _objects[name] = value
    return name


def passed(kind: str, name: str) -> Any:
    """Returns the object of a name. Raises `ConfigError` in another program than the one that passed it."""
    if name not in _objects:
        raise ConfigError(
            f"{kind} '{name}' was an object of the Python program that made this config, and cannot be built here: "
            "go on in that program, by sojourn.train(run, resume=True) with the same object under the same key"
        )
    return _objects[name]
