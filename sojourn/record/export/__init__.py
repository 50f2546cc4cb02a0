"""Recorded episodes in the formats of others, and back: one file for each format, one line for each in `FORMATS`.

A format is a module with `write(path, chosen)`, which returns how many records it wrote; those that can be trained on
again have `read(path)`, which gives what `sojourn.record.export.reading` names. `None` is what cannot be read back.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.config.lookup import nearest
from sojourn.errors import ConfigError, RecordError
from sojourn.files import open_regular
from sojourn.record.atomic import write_file
from sojourn.record.export.chosen import Choice, Chosen
from sojourn.record.export.lines import read_lines
from sojourn.record.export.reading import Conversation
from sojourn.record.run import RunFolder
from sojourn.types import Group

FORMATS = {
    "prov": "sojourn.record.export.prov",
    "adp": "sojourn.record.export.adp",
    "chat": "sojourn.record.export.chat",
    "parquet": "sojourn.record.export.parquet",
}


class Exported(NamedTuple):
    """What became of an export: how many episodes and records (lines, rows) it holds, and what it left out."""

    episodes: int
    records: int
    unit: str
    left_out: Sequence[str]


def export(run: Path, out: Path, format: str, choice: Choice) -> Exported:
    """Writes the chosen episodes of a run to a new file, whole or not at all; one episode at a time is in memory."""
    module = format_of(format)
    found = RunFolder.read(run)
    if out.exists():
        raise RecordError(f"{out} exists: give the export another name, or move the file away")
    if not out.absolute().parent.is_dir():
        raise RecordError(f"{out}: there is no folder '{out.parent}': make it first")
    with Chosen.of(found, choice) as chosen:
        counted: list[int] = []
        write_file(out, lambda temporary: counted.append(module.write(temporary, chosen)))
        return Exported(chosen.given, counted[0], module.UNIT, tuple(chosen.left_out))


def read(path: Path, *, render: bool = False) -> Iterator[Group | Conversation]:
    """What a file of recorded episodes holds: groups with their tokens, and conversations of other programs.

    With `render`, all are conversations. Raises RecordError where the file cannot be read, at the first place.
    """
    return format_of(_format_in(path)).read(path, render=render)


def _format_in(path: Path) -> str:
    """The format of a file, by what it begins with."""
    try:
        with open_regular(path) as file:
            if file.read(4) == b"PAR1":
                return "parquet"
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}): name a file of episodes") from error
    for number, data in read_lines(path):
        if "messages" in data:
            return "chat"
        if "content" in data:
            return "adp"
        raise RecordError(
            f"{path}:{number} has neither 'messages' (chat) nor 'content' (Agent Data Protocol): give Parquet of ours, "
            "or lines of one of these"
        )
    raise RecordError(f"{path} is empty: give a file of episodes")


def format_of(name: str) -> Any:
    """The module of a format."""
    if name not in FORMATS:
        raise ConfigError(f"unknown format '{name}': {nearest(name, FORMATS)}")
    return importlib.import_module(FORMATS[name])
