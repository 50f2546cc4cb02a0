"""Gymnasium's spaces in words: what an observation says, which actions there are, and how an action is parsed.

Spaces are recognised by the names of their classes, so nothing is imported here. An action is a name (where the config
gives names to discrete ones), or a literal as Python writes it: `2`, `[0.5, -1]`, `{"move": 1}`. Nothing is ever
evaluated.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sojourn.envs.calls import LONGEST_ACTION, short
from sojourn.errors import ActionError, ConfigError

LARGEST = 256  # numbers of an observation that are still read with profit
MOST_CHOICES = 64


def kind(space: Any) -> str:
    """Returns the name of the Gymnasium class that a space is, or is derived from."""
    return next((c.__name__ for c in type(space).__mro__ if c.__module__.startswith("gymnasium.spaces")), "")


def plain(space: Any, value: Any) -> Any:
    """Returns an observation or action as numbers, texts, lists and dicts; floats have four digits after the point."""
    match kind(space):
        case "Discrete":
            return int(value)
        case "Dict":
            return {str(key): plain(part, value[key]) for key, part in space.spaces.items()}
        case "Tuple":
            return [plain(part, item) for part, item in zip(space.spaces, value, strict=True)]
        case "Sequence":
            return [plain(space.feature_space, item) for item in value]
        case "Text":
            return str(value)
    array = np.asarray(value)
    return (np.round(array.astype(float), 4) if array.dtype.kind == "f" else array).tolist()


def say(space: Any, value: Any, where: str) -> str:
    """Returns an observation in words: a line for each key of a dict, a line for each row of a table.

    Planes of which at most one is set in each place are one table, with the number of that plane (from 1 on) or 0.
    Other tables of whole numbers, several to a cell, have the numbers of a cell joined by commas: `2,5,0 1,0,0`.
    """
    class_name = kind(space)
    if class_name == "Dict":
        parts = [(str(key), say(part, value[key], where)) for key, part in space.spaces.items()]
        return "\n".join(f"{key}:\n{text}" if "\n" in text else f"{key}: {text}" for key, text in parts)
    if class_name == "Text" or isinstance(value, str):
        return str(value)
    if class_name in ("Box", "MultiDiscrete", "MultiBinary"):
        array = np.asarray(value)
        if array.size > LARGEST:
            raise ConfigError(
                f"{where}: an observation has {array.size} numbers, more than {LARGEST}: name a function in "
                '`describe`, or say describe = "render" if it renders text'
            )
        if array.ndim == 3 and _are_planes(array):
            array = (array.astype(int) * np.arange(1, array.shape[2] + 1)).sum(axis=2)
        if array.ndim == 3 and array.dtype.kind in "iub":
            rows = [[",".join(map(_number, cell)) for cell in row] for row in plain(space, array)]
            return "\n".join(map(" ".join, rows))
        if array.ndim == 2:
            return "\n".join(" ".join(map(_number, row)) for row in plain(space, array))
    if not class_name:
        raise ConfigError(f"{where}: a {type(space).__name__} cannot be said in words: name a function in `describe`")
    return _written(plain(space, value))


def names_of(space: Any, given: Sequence[str], where: str) -> tuple[str, ...]:
    """Returns the names of a discrete space's actions: the given ones, or their numbers; nothing for other spaces."""
    if kind(space) != "Discrete":
        if given:
            raise ConfigError(f"{where}: actions = {list(given)}, but its actions are {in_words(space)}: leave it out")
        return ()
    if given and len(given) != space.n:
        raise ConfigError(f"{where}: actions has {len(given)} names, but there are {space.n} actions: name each once")
    if len({name.casefold() for name in given}) < len(given):
        raise ConfigError(f"{where}: actions = {list(given)} has a name twice: name each action once")
    return tuple(given) or tuple(str(int(space.start) + i) for i in range(min(int(space.n), 100_000)))


def in_words(space: Any) -> str:
    """Returns a description of the literals of the space."""
    match kind(space):
        case "Discrete":
            return f"a whole number from {int(space.start)} to {int(space.start + space.n - 1)}"
        case "MultiDiscrete" | "MultiBinary":
            most = "0 or 1 each" if kind(space) == "MultiBinary" else f"below {np.asarray(space.nvec).tolist()}"
            return f"a list of {_shape(space.shape)} whole number{_plural(space.shape)}, {most}"
        case "Box":
            low, high = np.unique(space.low), np.unique(space.high)
            limits = f" from {low[0]:g} to {high[0]:g}" if len(low) == len(high) == 1 else ""
            limits = limits or f" from {space.low.tolist()} to {space.high.tolist()}"
            many = f"a list of {_shape(space.shape)} number{_plural(space.shape)}" if space.shape else "a number"
            return many + limits
        case "Text":
            return f"a text of {space.min_length} to {space.max_length} characters"
        case "Dict":
            return "{" + ", ".join(f'"{key}": {in_words(part)}' for key, part in space.spaces.items()) + "}"
        case "Tuple":
            return "[" + ", ".join(in_words(part) for part in space.spaces) + "]"
    raise ConfigError(
        f"actions of a {type(space).__name__} cannot be said: give the environment a simpler action space"
    )


def read(space: Any, text: str, names: Sequence[str] = ()) -> Any:
    """Returns the action that a text names; raises `ActionError` where it names none."""
    if len(text) > LONGEST_ACTION:
        raise ActionError(f"{len(text)} characters are too many, say one action")
    text = text.strip()
    if kind(space) == "Text":
        if not text or not space.contains(text):
            raise ActionError(f"{short(text)} is no action, say {in_words(space)}")
        return text
    if names:
        number = {name.casefold(): number for number, name in enumerate(names)}.get(text.casefold())
        if number is None:
            raise ActionError(f"{short(text)} is no action, say one of {', '.join(names[:MOST_CHOICES])}")
        return space.dtype.type(space.start + number)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, about the agent's odd literals
            value = made(space, ast.literal_eval(text))
    except (SyntaxError, ValueError, TypeError, OverflowError, RecursionError, MemoryError):
        value = None
    if value is None or not space.contains(value):
        raise ActionError(f"{short(text)} is no action, say {in_words(space)}")
    return value


def made(space: Any, value: Any) -> Any:
    """Returns a member of the space from plain values; raises ValueError or TypeError where they do not fit."""
    match kind(space):
        case "Discrete":
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TypeError(f"{value!r} is no whole number")
            return space.dtype.type(value)
        case "Dict":
            if not isinstance(value, Mapping) or set(value) != set(space.spaces):
                raise ValueError(f"the keys must be {', '.join(map(str, space.spaces))}")
            return {key: made(part, value[key]) for key, part in space.spaces.items()}
        case "Tuple":
            return tuple(made(part, item) for part, item in zip(space.spaces, value, strict=True))
        case "Text":
            return str(value)
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or array.shape != space.shape or not np.isfinite(array).all():
        raise ValueError(f"the shape must be {space.shape}, of finite numbers")
    cast = array.astype(space.dtype)
    if space.dtype.kind != "f" and not np.array_equal(cast, array):
        raise ValueError("whole numbers are needed")
    return cast


def spoken(space: Any, action: Any, names: Sequence[str] = ()) -> str:
    """Returns an action as an agent would write it."""
    if names:
        return names[int(action) - int(space.start)]
    return str(action) if kind(space) == "Text" else _written(plain(space, action))


def _are_planes(array: Any) -> bool:
    return array.dtype.kind in "iub" and bool(((array == 0) | (array == 1)).all() and (array.sum(axis=2) <= 1).all())


def _shape(shape: Sequence[int]) -> str:
    return " by ".join(map(str, shape))


def _plural(shape: Sequence[int]) -> str:
    return "" if math.prod(shape) == 1 else "s"


def _number(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return str(int(value)) if isinstance(value, bool) else str(value)


def _written(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}": {_written(item)}' for key, item in value.items()) + "}"
    return repr(value) if isinstance(value, str) else _number(value)
