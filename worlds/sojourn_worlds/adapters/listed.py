"""Tasks that a user wrote down, in JSON lines or TOML, and the comparison of answers."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from sojourn.envs.calls import short
from sojourn.errors import ConfigError


def listed(path: str, world: str, split: str) -> list[dict[str, Any]]:
    """Returns the rows of a split: those that name it, else four of five for training and every fifth for testing."""
    return [
        {key: value for key, value in row.items() if key != "split"}
        for number, row in enumerate(rows(path, world))
        if row.get("split", "test" if number % 5 == 4 else "train") == split
    ]


def rows(path: str, world: str) -> tuple[dict[str, Any], ...]:
    """Returns all rows of a file of tasks; raises `ConfigError` where it cannot be read."""
    file = Path(path)
    try:
        rows = _read(path, file.stat().st_mtime_ns)
    except OSError as error:
        raise ConfigError(f"{world}: the tasks {path} cannot be read ({error.strerror}): correct the path") from None
    except ValueError as error:
        raise ConfigError(f"{world}: the tasks {path} are neither JSON lines nor TOML ({error})") from None
    for row in rows:
        if not isinstance(row, Mapping) or row.get("split", "train") not in ("train", "test"):
            raise ConfigError(f'{world}: the task {short(row)} of {path} must be a table, its split "train" or "test"')
    if not rows:
        raise ConfigError(f"{world}: {path} has no tasks: write one JSON object a line, or [[task]] tables")
    return rows


@lru_cache(16)
def _read(path: str, changed: int) -> tuple[Any, ...]:
    text = Path(path).read_text("utf-8")
    if path.endswith(".toml"):
        return tuple(json.loads(json.dumps(tomllib.loads(text).get("task", []))))
    return tuple(json.loads(line) for line in text.split("\n") if line.strip())


def same(expected: Any, given: Any) -> bool:
    """Returns whether an answer is the expected one: numbers by value, words whatever their case and spaces."""
    if isinstance(expected, bool) or not isinstance(expected, (int, float)):
        return str(expected).casefold().split() == str(given).casefold().split()
    try:
        number = float(str(given).strip().replace(",", "").lstrip("$").rstrip("%."))
    except ValueError:
        return False
    return math.isclose(number, expected, rel_tol=1e-6, abs_tol=1e-9)
