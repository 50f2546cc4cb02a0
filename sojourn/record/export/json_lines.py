"""Writes JSON lines that every JSON reader accepts, and reads records: an object per line, or a list of objects."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sojourn.errors import RecordError
from sojourn.files import open_regular

SURROGATE = re.compile(r"\\\\|\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|\\ud[89a-f][0-9a-f]{2}")
NOT_SPACE = re.compile(r"[^ \t\r\n]")

BLANK = b"\xef\xbb\xbf \t\r\n"  # what may stand before a value: white space, and the mark that some editors write first


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


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields every object of a file with its place for messages: `path:line`, or `path: item 3` of a JSON list.

    Raises RecordError at the first place that holds no object.
    """
    try:
        with open_regular(path) as file:
            for number, raw in enumerate(file, 1):
                if raw.lstrip(BLANK).startswith(b"["):
                    yield from _listed(raw + file.read(), path, number)
                    return
                if raw.strip():
                    yield f"{path}:{number}", _object(_parsed(raw, path, number), f"{path}:{number}")
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}): give a file of JSON lines") from error


def _listed(raw: bytes, path: Path, first: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the objects of a JSON list, each of which is parsed when it is asked for: whoever looks at the first alone
    parses no other."""
    with _telling(path, first):
        for number, item in enumerate(_items(raw.decode(json.detect_encoding(raw))), 1):
            yield (where := f"{path}: item {number}"), _object(item, where)


def _items(text: str) -> Iterator[Any]:
    """Yields the values of a JSON list. Raises `JSONDecodeError` at the first place that is not JSON."""
    decode, at = json.JSONDecoder().raw_decode, _next(text, text.index("[") + 1)
    more = not text.startswith("]", at)
    while more:
        value, at = decode(text, at)
        yield value
        at = _next(text, at)
        more = text.startswith(",", at)
        if not more and not text.startswith("]", at):
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _next(text, at + 1) if more else at
    if (end := _next(text, at + 1)) < len(text):
        raise json.JSONDecodeError("Extra data", text, end)


def _next(text: str, at: int) -> int:
    """Returns the first place from `at` on that is no white space."""
    found = NOT_SPACE.search(text, at)
    return found.start() if found else len(text)


def _parsed(raw: bytes, path: Path, number: int) -> Any:
    """Returns the value of a line of JSON."""
    with _telling(path, number):
        return json.loads(raw)


@contextmanager
def _telling(path: Path, first: int) -> Iterator[None]:
    """Says where a text is not JSON, whose first line has the given number in its file."""
    try:
        yield
    except json.JSONDecodeError as error:
        where = f"{path}:{first + error.lineno - 1}"
        cause = f"at column {error.colno}: {error.msg}"
        raise RecordError(f"{where} is not JSON ({cause}): mend the line or take it out") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}:{first} is not JSON ({str(error)[:80]}): mend the line or take it out") from error


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RecordError(f"{where} holds {str(value)[:40]!r}: expected a JSON object")
    return value
