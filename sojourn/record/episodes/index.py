"""The SQLite file of an episode store: a row per episode, its tags and tools, and the words of its texts.

The words are in an FTS5 table without content: it holds where each word is and nothing else, as the texts are in the
records. Nothing is ever removed from it: what `remove` leaves there names rows that are no more, whose numbers are
never used again, so every search joins with `episodes`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sojourn.errors import RecordError
from sojourn.files import require_regular
from sojourn.record.atomic import FILE, private
from sojourn.record.episodes.episode_row import COLUMNS, FIRST, Entry, completed, from_json, to_row
from sojourn.record.episodes.step_file import StepFile
from sojourn.record.search.fts_documents import PARTS, clean, documents
from sojourn.types import Episode

TOKENS = "unicode61 remove_diacritics 2"  # what a word is: letters and digits of any script, case and accents aside
PAGE_BYTES = 1 << 14  # larger than usual: the rows of a search are read anew by every reader, in fewer pieces
LOGS = ("-wal", "-shm", "-journal")
FORM = 1  # `user_version`; the first form, without words, had 0
SCHEMA = f"""
BEGIN;
CREATE TABLE IF NOT EXISTS episodes (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    stage TEXT, step INTEGER, part INTEGER, number INTEGER, place INTEGER, slot INTEGER,
    id TEXT, task TEXT, env TEXT, tags TEXT, split TEXT, seed TEXT, reward REAL, success REAL, turns INTEGER,
    sampled INTEGER, ending TEXT, error TEXT, seconds REAL, parts TEXT, tools TEXT, malformed INTEGER,
    cut_off INTEGER, oldest INTEGER, newest INTEGER, advantage REAL,
    UNIQUE (stage, step, part, number)
);
CREATE INDEX IF NOT EXISTS by_id ON episodes (id);
CREATE INDEX IF NOT EXISTS by_task ON episodes (task);
CREATE INDEX IF NOT EXISTS by_error ON episodes (error) WHERE error IS NOT NULL;
CREATE TABLE IF NOT EXISTS labels (
    kind TEXT, value TEXT, row INTEGER, PRIMARY KEY (kind, value, row)
) WITHOUT ROWID;
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(
    {", ".join(PARTS)}, content='', columnsize=0, tokenize='{TOKENS}'
);
PRAGMA user_version = {FORM};
COMMIT;
"""


class OlderError(sqlite3.DatabaseError):
    """An older Sojourn wrote the index: it has no words, and fewer columns."""


class Indexed(NamedTuple):
    """What the index is given of an episode; `texts` is None where its record cannot be read."""

    entry: Entry
    texts: tuple[str, ...] | None


def indexed(entry: Entry, episode: Episode) -> Indexed:
    return Indexed(entry, documents(episode))


def prepare(path: Path) -> sqlite3.Connection:
    """The database to write to, sound and with our tables; raises what SQLite has against it."""
    _require_files(path)
    with suppress(OSError):  # SQLite says it better
        if private(path.parent) and not path.exists():
            path.touch(FILE)
    database = sqlite3.connect(path, check_same_thread=False)
    try:
        database.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # of a new file
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        if _columns(database) == FIRST:
            raise OlderError("an older Sojourn wrote it")
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
    return database


def _require_files(path: Path) -> None:
    """Raises DatabaseError where a pipe or a device is in the place of a file, which SQLite would wait for."""
    try:
        for file in (path, *(Path(f"{path}{log}") for log in LOGS)):
            require_regular(file)
    except OSError as error:
        raise sqlite3.DatabaseError(f"{error.strerror}: '{error.filename}'") from error


def _text(data: bytes) -> str:
    """JSON in the index may hold half characters, which SQLite gives out as they are."""
    return data.decode(errors="backslashreplace")


def current(database: sqlite3.Connection) -> bool:
    """Whether it is of today's form, and can be searched."""
    return database.execute("PRAGMA user_version").fetchone()[0] == FORM


def unfit(database: sqlite3.Connection) -> str:
    """What is wrong with an index that is not current; nothing where a writer is about to make its tables."""
    columns = _columns(database)
    return "was written by an older Sojourn, without words to search" if columns else ""


def damage(error: sqlite3.Error) -> bool:
    """Whether the file is at fault (no database, or another's tables), not the disk, a lock or our rights."""
    return not isinstance(error, sqlite3.OperationalError) or error.sqlite_errorcode == sqlite3.SQLITE_ERROR


def insert(database: sqlite3.Connection, episodes: Sequence[Indexed]) -> None:
    """Within the transaction of the caller."""
    row = f"INSERT OR REPLACE INTO episodes ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
    label = "INSERT OR IGNORE INTO labels (kind, value, row) VALUES (?, ?, ?)"
    words = f"INSERT INTO words (rowid, {', '.join(PARTS)}) VALUES ({', '.join('?' * (1 + len(PARTS)))})"
    for entry, texts in episodes:
        number = database.execute(row, to_row(entry)).lastrowid
        held = {"tag": map(clean, entry.tags), "tool": map(clean, entry.tools)}
        database.executemany(label, [(kind, value, number) for kind, values in held.items() for value in values])
        if texts is not None:
            database.execute(words, (number, *texts))


def remove(database: sqlite3.Connection, stage: str, step: int) -> None:
    """The rows of the stage from `step` on, within the transaction of the caller."""
    where, values = "FROM episodes WHERE stage = ? AND step >= ?", (stage, step)
    database.execute(f"DELETE FROM labels WHERE row IN (SELECT row {where})", values)
    database.execute(f"DELETE {where}", values)


def labels(database: sqlite3.Connection, kind: str) -> list[str]:
    """Every value of a kind, found one after another: SQLite skips the rows in between."""
    following = "SELECT min(value) FROM labels WHERE kind = :kind"
    statement = f"""
        WITH RECURSIVE each (value) AS (
            {following} UNION ALL SELECT ({following} AND value > each.value) FROM each WHERE value IS NOT NULL
        ) SELECT value FROM each WHERE value IS NOT NULL
    """
    return [value for (value,) in database.execute(statement, {"kind": kind})]


def rebuild(database: sqlite3.Connection, tokens: Path, *, texts: bool = True) -> list[str]:
    """Fills an empty index from the files of a store, all or none, oldest file first; a sentence for what it leaves
    out."""
    left: list[str] = []
    with database:
        for path in sorted(tokens.glob("*.npz"), key=lambda path: (path.stat().st_mtime_ns, path.name)):
            try:
                found = list(_of_file(path, texts))
            except (RecordError, TypeError, KeyError) as error:
                left.append(f"{path.name} is left out of the index: {error}")
                continue
            insert(database, found)
    return left


def recorded_in(tokens: Path) -> bool:
    """Whether there is anything yet: a store is opened to read before the first step too."""
    with suppress(OSError), os.scandir(tokens) as files:
        return any(file.name.endswith(".npz") for file in files)
    return False


def _of_file(path: Path, texts: bool) -> Iterator[Indexed]:
    with StepFile(path) as file:
        for row in file.index():
            entry = from_json(row)
            try:
                record = file.record(entry.number) if texts else None
            except RecordError:
                record = None
            if record is None:
                yield Indexed(entry, None)
            else:
                yield indexed(entry if "tools" in row else completed(entry, record), record.episode)


def _columns(database: sqlite3.Connection) -> tuple[str, ...]:
    return tuple(column[1] for column in database.execute("PRAGMA table_info(episodes)"))
