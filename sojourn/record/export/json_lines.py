"""Writes and reads JSON lines that every JSON reader accepts: strict, and one object per line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sojourn.errors import RecordError
from sojourn.files import open_regular

SURROGATE = re.compile(r"\\\\|\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|\\ud[89a-f][0-9a-f]{2}")


def to_line(value: Any) -> str:
    """Returns one line of ASCII, in which half a surrogate pair, invalid in UTF-8, is the replacement character."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), allow_nan=False)
    return SURROGATE.sub(lambda match: match[0] if match[1] or match[0] == "\\\\" else "\\ufffd", text) + "\n"


def _finite(value: Any) -> Any:
    """Replaces numbers that JSON does not have by null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the object of every line that is not blank, with the line's number from 1 on.

    Raises RecordError at the first line that holds no object.
    """
    try:
        with open_regular(path) as file:
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    yield number, _object(raw, f"{path}:{number}")
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}): give a file of JSON lines") from error


def _object(raw: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where} is not JSON ({str(error)[:80]}): mend the line or take it out") from error
    if not isinstance(value, dict):
        raise RecordError(f"{where} holds {str(value)[:40]!r}: expected a JSON object in every line")
    return value
