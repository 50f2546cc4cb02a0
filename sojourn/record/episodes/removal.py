"""Removes episodes from a store for ever: their rows, their words, their records, and what was asked about them.

What a step measured of them stays, in `metrics.jsonl`. The files of the steps are written anew without them; numbers of
the other episodes stay as they are.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from sojourn.errors import RecordError
from sojourn.models import answers
from sojourn.models.questions import Questions
from sojourn.record.atomic import writing
from sojourn.record.episodes import step_file
from sojourn.record.episodes.step_file import StepFile
from sojourn.record.search.fts_documents import COLUMN_OF_PART, documents

Files = Callable[[str, int, int], Path]  # the file of a part of a step of a stage
COLUMNS = ", ".join(COLUMN_OF_PART.values())


class _Place(NamedTuple):
    """Says where an episode is recorded."""

    row: int
    stage: str
    step: int
    part: int
    number: int
    place: int
    id: str

    @property
    def file(self) -> tuple[str, int, int]:
        return self.stage, self.step, self.part


def remove(database: sqlite3.Connection, folder: Path, files: Files, ids: Collection[str]) -> list[str]:
    """Removes the episodes of these ids from the index, within the transaction of the caller, and from the files; and
    the groups from what later steps say that they trained again. Returns the ids of those that were there.

    A removal that was interrupted is carried out whole by another call: rows are there until files are written.
    """
    found = _places(database, ids)
    if not found:
        return []
    texts_known = True
    for file, of_file in groupby(found, key=lambda one: one.file):
        texts_known &= _remove_words(database, files(*file), list(of_file))
    rows = json.dumps([one.row for one in found])
    database.execute("DELETE FROM labels WHERE row IN (SELECT value FROM json_each(?))", (rows,))
    database.execute("DELETE FROM episodes WHERE row IN (SELECT value FROM json_each(?))", (rows,))
    again = _remove_reused(database, {(one.stage, one.step, one.place) for one in found})
    for file in {*(one.file for one in found), *again}:
        gone = {one.number for one in found if one.file == file}
        step_file.rewrite(files(*file), gone, again.get(file, set()))
    if not texts_known:
        _index_words_again(database, files)
    _clean_up(database, folder, [one.id for one in found])
    return [one.id for one in found]


def _clean_up(database: sqlite3.Connection, folder: Path, ids: Collection[str]) -> None:
    """Merges the index of words, whose old pieces hold what was removed; removes indexes that were moved aside; blanks
    what judges and other models answered about the episodes, whose cost stays; removes what people were asked."""
    database.execute("INSERT INTO words (words) VALUES ('optimize')")
    for suffix in (".older", ".damaged"):
        aside = folder / f"episodes{suffix}"
        with writing(aside):
            aside.unlink(missing_ok=True)
    answers.blank(folder, ids)
    Questions(folder).blank(ids)


def _places(database: sqlite3.Connection, ids: Collection[str]) -> list[_Place]:
    statement = (
        f"SELECT {', '.join(_Place._fields)} FROM episodes WHERE id IN (SELECT value FROM json_each(?)) "
        "ORDER BY stage, step, part, number"
    )
    return [_Place(*row) for row in database.execute(statement, (json.dumps(list(ids)),)).fetchall()]


def _remove_words(database: sqlite3.Connection, path: Path, places: list[_Place]) -> bool:
    """Removes the words of episodes of a file, which the index is told once more, as it keeps no texts. Returns whether
    all texts could be read; they cannot where the file was written anew before, and the removal was interrupted."""
    statement = f"INSERT INTO words (words, rowid, {COLUMNS}) VALUES ('delete', ?{', ?' * len(COLUMN_OF_PART)})"
    try:
        with StepFile(path) as file:
            texts = [documents(file.record(one.number).episode) for one in places]
    except RecordError:
        return False
    database.executemany(statement, [(one.row, *text) for one, text in zip(places, texts, strict=True)])
    return True


def _remove_reused(
    database: sqlite3.Connection, groups: Collection[tuple[str, int, int]]
) -> dict[tuple[str, int, int], set[tuple[int, int]]]:
    """Removes the rows of later steps that trained groups again of which no episode is left; returns, by the file that
    names them, the step and the place of each such group."""
    named: dict[tuple[str, int, int], set[tuple[int, int]]] = {}
    for stage, step, place in groups:
        values = (stage, step, place)
        if database.execute("SELECT 1 FROM episodes WHERE stage = ? AND step = ? AND place = ?", values).fetchone():
            continue
        where = "FROM reused WHERE stage = ? AND of_step = ? AND of_place = ?"
        for file in database.execute(f"SELECT stage, step, part {where}", values).fetchall():
            named.setdefault(file, set()).add((step, place))
        database.execute(f"DELETE {where}", values)
    return named


def _index_words_again(database: sqlite3.Connection, files: Files) -> None:
    """Makes the index of words anew from the records; those that cannot be read have no words."""
    database.execute("INSERT INTO words (words) VALUES ('delete-all')")
    rows = database.execute("SELECT row, stage, step, part, number FROM episodes ORDER BY stage, step, part").fetchall()
    statement = f"INSERT INTO words (rowid, {COLUMNS}) VALUES (?{', ?' * len(COLUMN_OF_PART)})"
    for file, of_file in groupby(rows, key=lambda row: row[1:4]):
        try:
            with StepFile(files(*file)) as opened:
                texts = [(row[0], *documents(opened.record(row[4]).episode)) for row in of_file]
        except RecordError:
            continue
        database.executemany(statement, texts)
