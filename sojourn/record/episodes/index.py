"""The SQLite file of an episode store: a row per episode, its tags and tools, and the words of its texts.

The words are in an FTS5 table without content: it holds only the places of each word, since the texts are in the
records. What `remove` leaves there names rows that no longer exist and whose numbers are never used again, so every
search joins with `episodes`. Only what is removed for ever (`removal.py`) is removed from it, too.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.errors import RecordError
from sojourn.files import require_regular
from sojourn.record.atomic import FILE_MODE, private
from sojourn.record.episodes.episode_row import (
    COLUMNS,
    COLUMNS_BEFORE_ORIGIN,
    OLDEST_COLUMNS,
    EpisodeRow,
    from_json,
    to_values,
    with_later_columns,
)
from sojourn.record.episodes.reused import COLUMNS as REUSED_COLUMNS
from sojourn.record.episodes.reused import ReusedGroup
from sojourn.record.episodes.step_file import StepFile
from sojourn.record.search.fts_documents import COLUMN_OF_PART, clean, documents
from sojourn.types import Episode

TOKENS = "unicode61 remove_diacritics 2"  # a word is letters and digits of any script; case and accents do not count
PAGE_BYTES = 1 << 14  # larger than SQLite's default, so that a search reads its rows in fewer pieces
LOG_SUFFIXES = ("-wal", "-shm", "-journal")
# `user_version`: 0 had no words to search, 1 none of the tools that are called in words, and 2 no origins of groups
SCHEMA_VERSION = 3
REUSED = """
CREATE {kind} IF NOT EXISTS reused (
    stage TEXT, step INTEGER, part INTEGER, origin TEXT, of_step INTEGER, of_place INTEGER
);
"""
SCHEMA = f"""
BEGIN;
CREATE TABLE IF NOT EXISTS episodes (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    stage TEXT, step INTEGER, part INTEGER, number INTEGER, place INTEGER, slot INTEGER,
    id TEXT, task TEXT, env TEXT, tags TEXT, split TEXT, seed TEXT, reward REAL, success REAL, turns INTEGER,
    sampled INTEGER, ending TEXT, error TEXT, seconds REAL, parts TEXT, tools TEXT, malformed INTEGER,
    cut_off INTEGER, oldest INTEGER, newest INTEGER, advantage REAL, origin TEXT,
    UNIQUE (stage, step, part, number)
);
CREATE INDEX IF NOT EXISTS by_id ON episodes (id);
CREATE INDEX IF NOT EXISTS by_task ON episodes (task);
CREATE INDEX IF NOT EXISTS by_error ON episodes (error) WHERE error IS NOT NULL;
{REUSED.format(kind="TABLE")}
CREATE INDEX IF NOT EXISTS reused_by_step ON reused (stage, step);
CREATE INDEX IF NOT EXISTS reused_by_place ON reused (stage, of_step, of_place);
CREATE TABLE IF NOT EXISTS labels (
    kind TEXT, value TEXT, row INTEGER, PRIMARY KEY (kind, value, row)
) WITHOUT ROWID;
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(
    {", ".join(COLUMN_OF_PART.values())}, content='', columnsize=0, tokenize='{TOKENS}'
);
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""


class OlderIndexError(sqlite3.DatabaseError):
    """The index was written by an older Sojourn; the text says what it lacks."""


class IndexedEpisode(NamedTuple):
    """Holds what the index stores of an episode; `texts` is None where its record cannot be read."""

    row: EpisodeRow
    texts: tuple[str, ...] | None


def index_episode(row: EpisodeRow, episode: Episode) -> IndexedEpisode:
    return IndexedEpisode(row, documents(episode))


def prepare(path: Path) -> sqlite3.Connection:
    """Opens the database to write to and makes its tables; raises `sqlite3.Error` if it is damaged or refused."""
    _require_files(path)
    with suppress(OSError):  # SQLite's own error is clearer
        if private(path.parent) and not path.exists():
            path.touch(FILE_MODE)
    database = sqlite3.connect(path, check_same_thread=False)
    try:
        database.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # of a new file
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA secure_delete = ON")
        if _columns(database) == ("row", *COLUMNS_BEFORE_ORIGIN):
            database.execute("ALTER TABLE episodes ADD COLUMN origin TEXT")
        if lacking := why_unsearchable(database):
            raise OlderIndexError(lacking)
        database.executescript(SCHEMA)
        if database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("quick_check failed")
        if _columns(database) != ("row", *COLUMNS):
            raise sqlite3.DatabaseError("the table has other columns")
    except sqlite3.Error as error:
        database.close()
        if "no such module" in str(error):
            raise RecordError(f"this Python's SQLite has no full-text search ({error}): use one with FTS5") from error
        raise
    return database


def open_to_read(path: Path) -> sqlite3.Connection:
    _require_files(path)
    address = path.resolve().as_uri()
    database = sqlite3.connect(f"{address}?mode=ro", uri=True)
    try:
        database.execute("SELECT 1 FROM episodes LIMIT 1").fetchone()
    except sqlite3.OperationalError:  # a folder that cannot be written cannot hold the log's shared memory
        database.close()
        database = sqlite3.connect(f"{address}?mode=ro&immutable=1", uri=True)
    database.text_factory = _text
    _show_origins(database)
    return database


def _show_origins(database: sqlite3.Connection) -> None:
    """Lets an index that an older Sojourn wrote answer as one without known origins and reused groups."""
    if _version(database) >= SCHEMA_VERSION:
        return
    database.execute("PRAGMA temp_store = MEMORY")
    database.execute(REUSED.format(kind="TEMP TABLE"))
    if _columns(database) == ("row", *COLUMNS_BEFORE_ORIGIN):
        database.execute("CREATE TEMP VIEW episodes AS SELECT *, NULL AS origin FROM main.episodes")


def in_memory() -> sqlite3.Connection:
    """Makes an empty index in memory; SQLite swaps what does not fit there to a nameless file."""
    database = sqlite3.connect("", check_same_thread=False)
    database.executescript(SCHEMA)
    return database


def _require_files(path: Path) -> None:
    """Raises DatabaseError if a pipe or a device has the name of a file, since SQLite would wait for it."""
    try:
        for file in (path, *(Path(f"{path}{log}") for log in LOG_SUFFIXES)):
            require_regular(file)
    except OSError as error:
        raise sqlite3.DatabaseError(f"{error.strerror}: '{error.filename}'") from error


def _text(data: bytes) -> str:
    """Decodes text that may hold halves of surrogate pairs, which JSON in the index may."""
    return data.decode(errors="backslashreplace")


def is_current(database: sqlite3.Connection) -> bool:
    """Returns whether every query can be asked of the index; where it has no origins, they are not known."""
    return _version(database) >= 2


def has_words(database: sqlite3.Connection) -> bool:
    """Returns whether the index has all columns, and words to search."""
    return _version(database) >= 1


def _version(database: sqlite3.Connection) -> int:
    return database.execute("PRAGMA user_version").fetchone()[0]


def why_unsearchable(database: sqlite3.Connection) -> str:
    """Returns what an index lacks that an older Sojourn wrote; empty for one without tables or rows, which a writer is
    about to fill, and for one that has other columns than any Sojourn wrote."""
    columns = _columns(database)
    if columns == OLDEST_COLUMNS:
        return "was written by an older Sojourn, without words to search"
    if columns != ("row", *COLUMNS) or is_current(database):
        return ""
    filled = database.execute("SELECT 1 FROM episodes LIMIT 1").fetchone()
    return "was written by an older Sojourn, without the tools that are called in words" if filled else ""


def is_damage(error: sqlite3.Error) -> bool:
    """Returns whether the file itself is at fault (no database, or foreign tables), not the disk, a lock or rights."""
    return not isinstance(error, sqlite3.OperationalError) or error.sqlite_errorcode == sqlite3.SQLITE_ERROR


def insert(database: sqlite3.Connection, episodes: Sequence[IndexedEpisode]) -> None:
    """Adds episodes within the transaction of the caller."""
    insert_row = f"INSERT OR REPLACE INTO episodes ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
    insert_label = "INSERT OR IGNORE INTO labels (kind, value, row) VALUES (?, ?, ?)"
    columns = ("rowid", *COLUMN_OF_PART.values())
    insert_words = f"INSERT INTO words ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    for row, texts in episodes:
        number = database.execute(insert_row, to_values(row)).lastrowid
        values_by_kind = {"tag": map(clean, row.tags), "tool": map(clean, row.tools)}
        pairs = [(kind, value, number) for kind, values in values_by_kind.items() for value in values]
        database.executemany(insert_label, pairs)
        if texts is not None:
            database.execute(insert_words, (number, *texts))


def next_numbers(database: sqlite3.Connection, stage: str, step: int) -> tuple[int, int]:
    """Returns the number of the next file of a step, and the place of the first group in it."""
    where = "WHERE stage = ?1 AND step = ?2"
    files = f"SELECT max(part) AS part FROM episodes {where} UNION ALL SELECT max(part) FROM reused {where}"
    places = f"SELECT coalesce(max(place), -1) + 1 FROM episodes {where}"
    statement = f"SELECT coalesce(max(part), -1) + 1, ({places}) FROM ({files})"
    return database.execute(statement, (stage, step)).fetchone()


def insert_reused(database: sqlite3.Connection, groups: Sequence[ReusedGroup]) -> None:
    """Adds reused groups within the transaction of the caller."""
    marks = ", ".join("?" * len(REUSED_COLUMNS))
    database.executemany(f"INSERT INTO reused ({', '.join(REUSED_COLUMNS)}) VALUES ({marks})", groups)


def remove(database: sqlite3.Connection, stage: str, step: int) -> None:
    """Removes the rows of the stage from `step` on, within the transaction of the caller."""
    where, values = "FROM episodes WHERE stage = ? AND step >= ?", (stage, step)
    database.execute(f"DELETE FROM labels WHERE row IN (SELECT row {where})", values)
    database.execute(f"DELETE {where}", values)
    database.execute("DELETE FROM reused WHERE stage = ? AND step >= ?", values)


def labels(database: sqlite3.Connection, kind: str) -> list[str]:
    """Returns every value of a kind of label. Each is looked up after the last one, so SQLite skips the rows
    between."""
    following = "SELECT min(value) FROM labels WHERE kind = :kind"
    statement = f"""
        WITH RECURSIVE each (value) AS (
            {following} UNION ALL SELECT ({following} AND value > each.value) FROM each WHERE value IS NOT NULL
        ) SELECT value FROM each WHERE value IS NOT NULL
    """
    return [value for (value,) in database.execute(statement, {"kind": kind})]


def rebuild(database: sqlite3.Connection, tokens: Path, *, texts: bool = True) -> list[str]:
    """Fills an empty index from the files of a store, all or none, oldest file first.

    Returns a sentence for each file that it leaves out.
    """
    left_out: list[str] = []
    with database:
        for path in sorted(tokens.glob("*.npz"), key=lambda path: (path.stat().st_mtime_ns, path.name)):
            try:
                episodes, reused = _content(path, texts)
            except (RecordError, TypeError, KeyError) as error:
                left_out.append(f"{path.name} is left out of the index: {error}")
                continue
            insert(database, episodes)
            insert_reused(database, reused)
    return left_out


def require_storable(values: Sequence[Any]) -> None:
    """Raises RecordError for a number or a text that SQLite cannot store, since no row can have it."""
    for value in values:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise RecordError("no step, group or place has a number of more than 18 digits: give a smaller one")
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise RecordError(f"{value[:64]!r} is not UTF-8, so nothing has this name: check the name") from None


def has_records(tokens: Path) -> bool:
    """Returns whether anything is recorded yet; a store may be opened to read before the first step."""
    with suppress(OSError), os.scandir(tokens) as files:
        return any(file.name.endswith(".npz") for file in files)
    return False


def _content(path: Path, texts: bool) -> tuple[list[IndexedEpisode], list[ReusedGroup]]:
    """Returns what the index stores of a step file."""
    with StepFile(path) as file:
        return list(_episodes_of_file(file, texts)), [ReusedGroup(**row) for row in file.reused()]


def _episodes_of_file(file: StepFile, texts: bool) -> Iterator[IndexedEpisode]:
    for data in file.index():
        row = from_json(data)
        try:
            record = file.record(row.number) if texts else None
        except RecordError:
            record = None
        if record is None:
            yield IndexedEpisode(row, None)
        else:
            yield index_episode(with_later_columns(row, record), record.episode)


def _columns(database: sqlite3.Connection) -> tuple[str, ...]:
    return tuple(column[1] for column in database.execute("PRAGMA table_info(episodes)"))
