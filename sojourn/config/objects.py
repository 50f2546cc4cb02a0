"""Writes what a Python program gives a recipe, objects among it, as the tables of a config."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.config.lookup import registered_name
from sojourn.config.passed import name_of
from sojourn.config.registry import as_toml, shown
from sojourn.errors import ConfigError

SCALARS = (str, bool, int, float)


def table_of(value: Any, where: str) -> Any:
    """Returns a value as a config has it; an object becomes a table that names it."""
    if isinstance(value, Mapping):
        return {str(key): table_of(item, f"{where}.{key}") for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [table_of(item, f"{where}.{number}") for number, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in SCALARS:
        return value
    if value is None:
        raise ConfigError(f"{where} = {shown(value)}: a config has no such value: leave the key out")
    return _settings(value, where) if _is_settings(value) else _component(value)


def _is_settings(value: Any) -> bool:
    """Returns whether an object is that of a table without a kind, such as `Optim`: Sojourn's own components are all
    registered."""
    cls = type(value)
    return is_dataclass(cls) and cls.__module__.startswith("sojourn.") and not registered_name(cls)


def _settings(value: Any, where: str) -> dict[str, Any]:
    if not (_is_kept(value) and _is_toml(table := as_toml(value))):
        raise ConfigError(f"{where} = {shown(value)}: TOML cannot hold all of it: give a table of its keys")
    return table_of(table, where)


def _component(value: Any) -> dict[str, Any]:
    """Returns the table of a class or an object: such that any process can build it, where that is possible."""
    cls = value if isinstance(value, type) else type(value)
    name = registered_name(cls) or f"{cls.__module__}:{cls.__qualname__}"
    if not (registered_name(cls) or _importable(cls)):
        return {"name": name_of(value)}
    if isinstance(value, type):
        return {"name": name}
    table = as_toml(value, component=True) if is_dataclass(value) and _is_kept(value) else None
    return {"name": name, **table_of(table, "")} if _is_toml(table) and table is not None else {"name": name_of(value)}


def _is_kept(value: Any) -> bool:
    """Returns whether a table keeps all of an object: TOML has no None, and a class within it needs a name."""
    if isinstance(value, Mapping):
        return all(map(_is_kept, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_kept, value))
    if not is_dataclass(value) or isinstance(value, type):
        return True
    held = [(getattr(value, f.name), f.default) for f in fields(value) if f.init]
    named = registered_name(type(value)) or _importable(type(value))
    return bool(named) and all(_is_kept(item) and (item is not None or default is None) for item, default in held)


def _importable(cls: type) -> bool:
    if cls.__module__ == "__main__" or "<" in cls.__qualname__ or "." in cls.__qualname__:
        return False
    try:
        return getattr(importlib.import_module(cls.__module__), cls.__name__, None) is cls
    except ImportError:
        return False


def _is_toml(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_toml(item) for item in value.values())
    if isinstance(value, list):
        return all(_is_toml(item) for item in value)
    return value is None or type(value) in SCALARS
