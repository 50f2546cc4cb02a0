"""Writes and reads recorded episodes in the formats of others: a module and a line in `FORMATS` for each.

A format is a module with `write(path, selected)`, which returns how many records it wrote, what one is called (`UNIT`),
and how the names of its files end (`SUFFIX`); those that can be read back have `read(path)`, which yields groups or
conversations (`sojourn.record.export.conversations`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.config.lookup import nearest
from sojourn.errors import ConfigError, RecordError
from sojourn.files import open_regular
from sojourn.record.atomic import require_new_file, write_file
from sojourn.record.export.conversations import Conversation
from sojourn.record.export.foreign import EXPECTED, shape_of
from sojourn.record.export.json_lines import read_records
from sojourn.record.export.selection import SelectedEpisodes, Selection
from sojourn.record.run import RunFolder
from sojourn.types import Group

FORMATS = {
    "prov": "sojourn.record.export.prov",
    "adp": "sojourn.record.export.adp",
    "chat": "sojourn.record.export.chat",
    "parquet": "sojourn.record.export.parquet",
}


class Exported(NamedTuple):
    """The number of episodes and of records (lines, rows) that an export wrote, and a sentence for each it left out."""

    episodes: int
    records: int
    unit: str
    left_out: Sequence[str]


def export(run: Path, out: Path, format: str, selection: Selection) -> Exported:
    """Writes selected episodes of a run to a new file, whole or not at all, with one episode in memory at a time."""
    module = format_of(format)
    folder = RunFolder.read(run)
    require_new_file(out)
    with SelectedEpisodes.of(folder, selection) as selected:
        counted: list[int] = []

        def write(temporary: Path) -> None:
            counted.append(module.write(temporary, selected))
            if not (selected.read_count and counted[0]):
                why = selected.left_out[0] if selected.left_out else "no model took a turn in them"
                raise RecordError(f"nothing is written, as none of the chosen episodes can be: {why}")

        write_file(out, write)
        return Exported(selected.read_count, counted[0], module.UNIT, tuple(selected.left_out))


def read(path: Path, *, render: bool = False) -> Iterator[Group | Conversation]:
    """Reads a file of episodes: groups, if it has their tokens, and conversations of other programs.

    With `render`, it yields only conversations. Raises RecordError at the first place that cannot be read.
    """
    return format_of(_format_in(path)).read(path, render=render)


def _format_in(path: Path) -> str:
    """Returns the format of a file by its first bytes, or the keys of its first record."""
    try:
        with open_regular(path) as file:
            if file.read(4) == b"PAR1":
                return "parquet"
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}): name a file of episodes") from error
    for where, record in read_records(path):
        if shape_of(record) is not None or "sojourn" in record:
            return "chat"
        if "content" in record:
            return "adp"
        raise RecordError(
            f"{where} has the keys {', '.join(record)[:80] or 'of nothing'}: expected {EXPECTED}, or 'content' "
            "(Agent Data Protocol)"
        )
    raise RecordError(f"{path} is empty: give a file of episodes")


def format_of(name: str) -> Any:
    """Returns the module that writes a format. Raises `ConfigError` for an unknown one."""
    if name not in FORMATS:
        raise ConfigError(f"unknown format '{name}': {nearest(name, FORMATS)}")
    return importlib.import_module(FORMATS[name])
