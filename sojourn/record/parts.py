"""The record of what the parts of a run do, `parts.jsonl`: one JSON object per reading, of which each step has one.

The file is bounded: where it grows beyond `MAX_BYTES`, every second reading of its older half is removed, so that old
readings lie further apart than new ones. Nothing of a run depends on it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.abilities import PartLoad, PartState
from sojourn.errors import RecordError
from sojourn.files import open_regular
from sojourn.record.atomic import write_bytes, writing
from sojourn.secrets import masker

PARTS = "parts.jsonl"
MAX_BYTES = 1 << 23
MAX_LINE_BYTES = 1 << 20
MAX_PARTS, MAX_NUMBERS = 2000, 40  # of a reading, of a part
MAX_TEXT = 200  # characters of a name, a fact or a note


class Reading(NamedTuple):
    """Holds what the parts of a run did at a time (seconds since the epoch), over the `over_s` seconds before. It was
    taken after a step of a stage; before the first step of a run it is -1. `left_out` counts further parts."""

    step: int
    stage: str
    unix_s: float
    over_s: float
    parts: tuple[PartLoad, ...]
    left_out: int = 0

    @property
    def kinds(self) -> dict[str, list[PartLoad]]:
        """Returns the parts by kind, in the order in which they are recorded."""
        found: dict[str, list[PartLoad]] = {}
        for part in self.parts:
            found.setdefault(part.kind, []).append(part)
        return found


class PartsFile:
    """Appends readings to the record of a run, and keeps it small."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path):
            if not path.exists():
                write_bytes(path, b"")
            else:
                _rewrite(path, lambda lines: lines)  # without a half-written last line
            self._file = path.open("ab")

    def write(self, reading: Reading) -> None:
        line = _line(reading)
        with writing(self.path):
            self._file.write(line)
            self._file.flush()
            if self._file.tell() > MAX_BYTES:
                self._file.close()
                _rewrite(self.path, _thinned)
                self._file = self.path.open("ab")

    def close(self) -> None:
        with writing(self.path):
            self._file.close()


def truncate(path: Path, step: int, stage: str) -> None:
    """Removes the first reading at or after a step of a stage and all that follow, for a resumed run."""

    def kept(lines: list[bytes]) -> list[bytes]:
        for number, line in enumerate(lines):
            reading = _parse(line)
            if reading is not None and reading.stage == stage and reading.step >= step:
                return lines[:number]
        return lines

    if path.exists():
        with writing(path):
            _rewrite(path, kept)


def read(path: Path) -> Iterator[Reading]:
    """Returns the readings of a run, except those that are damaged and a half-written last one."""
    return (reading for line in _read_lines(path) if (reading := _parse(line)) is not None)


def newest(path: Path) -> Reading | None:
    """Returns the last reading of a run, None where there is none."""
    return next((reading for line in reversed(_read_lines(path)) if (reading := _parse(line)) is not None), None)


def count_unread(path: Path, read: int) -> int:
    """Returns how many lines of a file could not be read, if `read` of them could."""
    return len(_read_lines(path)) - read


def _read_lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    try:
        with open_regular(path) as file:
            return _whole_lines(file.read(2 * MAX_BYTES))
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}): restore it from a copy, or remove it") from error


def _line(reading: Reading) -> bytes:
    """Returns the line of a reading, without the parts for which it has no room."""
    encoded: list[str] = []
    room = MAX_LINE_BYTES - 1000
    for part in reading.parts[:MAX_PARTS]:
        text = json.dumps(part_json(part))
        room -= len(text) + 2
        if room < 0:
            break
        encoded.append(text)
    left_out = len(reading.parts) - len(encoded) + reading.left_out
    head = {"step": reading.step, "stage": reading.stage[:MAX_TEXT], "unix_s": reading.unix_s, "over_s": reading.over_s}
    head |= {"left_out": left_out} if left_out else {}
    return f'{json.dumps(head)[:-1]}, "parts": [{", ".join(encoded)}]}}\n'.encode()


def part_json(part: PartLoad) -> dict[str, Any]:
    """Returns a part as it is recorded."""
    mask = masker()

    def cleaned(text: object) -> str:
        return mask(str(text)[: 10 * MAX_TEXT])[:MAX_TEXT]  # so that no secret is cut before it is found

    numbers = {name: _finite(value) for name, value in part.numbers.items()}
    return {
        "name": cleaned(part.name),
        "kind": cleaned(part.kind),
        "state": part.state.value,
        "seen_s": None if part.seen_s is None else _finite(part.seen_s),
        **({"note": cleaned(part.note)} if part.note else {}),
        "facts": {cleaned(name): cleaned(text) for name, text in _first(part.facts)},
        "numbers": {cleaned(name): value for name, value in _first(numbers)},
    }


def _first(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(values.items())[:MAX_NUMBERS]


def _finite(value: float) -> float | None:
    """Returns a number with six significant digits; None where it is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _parse(raw: bytes) -> Reading | None:
    if len(raw) > MAX_LINE_BYTES:
        return None
    try:
        data = json.loads(raw)
        parts = tuple(_part(one) for one in data["parts"][:MAX_PARTS])
        step, stage, left_out = int(data["step"]), str(data["stage"])[:MAX_TEXT], int(data.get("left_out", 0))
        return Reading(step, stage, _number(data["unix_s"]), _number(data["over_s"]), parts, left_out)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _part(data: Mapping[str, Any]) -> PartLoad:
    seen = data["seen_s"]
    return PartLoad(
        name=str(data["name"])[:MAX_TEXT],
        kind=str(data["kind"])[:MAX_TEXT],
        state=PartState(data["state"]),
        seen_s=None if seen is None else float(seen),
        note=str(data.get("note", ""))[:MAX_TEXT],
        facts={str(name)[:MAX_TEXT]: str(text)[:MAX_TEXT] for name, text in _first(data["facts"])},
        numbers={str(name)[:MAX_TEXT]: _number(value) for name, value in _first(data["numbers"])},
    )


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _whole_lines(data: bytes) -> list[bytes]:
    """Returns the lines that are complete, each with its end."""
    return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]


def _rewrite(path: Path, change: Callable[[list[bytes]], Sequence[bytes]]) -> None:
    """Replaces the lines of a file, whole or not at all, where that changes anything."""
    with open_regular(path) as file:
        data = file.read(4 * MAX_BYTES)
        longer = file.read(1)
    kept = b"".join(change(_whole_lines(data)))
    if longer or kept != data:
        write_bytes(path, kept)


def _thinned(lines: list[bytes]) -> list[bytes]:
    """Removes every second line of the older half, by size."""
    total, before = sum(map(len, lines)), 0
    kept: list[bytes] = []
    for number, line in enumerate(lines):
        before += len(line)
        if before > total / 2 or number % 2 == 0:
            kept.append(line)
    return kept
