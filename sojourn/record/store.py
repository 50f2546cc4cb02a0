"""Every episode of a run: an SQLite index to search, and one file of full records per step beside it.

The files in `tokens/` are the truth: each is written whole before its rows are committed, and each carries its rows,
so a lost or damaged index is made again from them. Readers never lock out the writer (SQLite's write-ahead log).
"""

from __future__ import annotations

import re
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from sojourn.errors import RecordError
from sojourn.record import step_file
from sojourn.record.atomic import writing
from sojourn.record.entry import COLUMNS, Entry, describe, from_row, to_row
from sojourn.record.step_file import Record, StepFile
from sojourn.types import Credit, Episode, Group, Score

SCHEMA = """
CREATE TABLE IF NOT EXISTS episodes (
    stage TEXT, step INTEGER, part INTEGER, number INTEGER, place INTEGER, slot INTEGER,
    id TEXT, task TEXT, env TEXT, tags TEXT, split TEXT, seed TEXT, reward REAL, success REAL, turns INTEGER,
    sampled INTEGER, ending TEXT, error TEXT, seconds REAL, parts TEXT,
    PRIMARY KEY (stage, step, part, number)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_id ON episodes (id);
CREATE INDEX IF NOT EXISTS by_task ON episodes (task);
"""


class StepCount(NamedTuple):
    """What one step of the store holds."""

    stage: str
    step: int
    groups: int
    episodes: int
    reward: float | None
    success: float | None


@dataclass(frozen=True)
class GroupRecord:
    """A group with its judgements; `credits` is empty where none were recorded."""

    stage: str
    step: int
    group: Group
    scores: tuple[Score, ...]
    credits: tuple[Credit, ...]


class EpisodeStore:
    """The episodes of one run folder. `write=False` (the default) only looks, also while another process writes."""

    def __init__(self, folder: str | Path, *, write: bool = False) -> None:
        self.folder = Path(folder)
        self.tokens = self.folder / "tokens"
        self._lock = threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._memory: sqlite3.Connection | None = None
        if write:
            with writing(self.tokens):
                self.tokens.mkdir(parents=True, exist_ok=True)
            self._writer = self._open_to_write()

    @property
    def path(self) -> Path:
        return self.folder / "episodes.sqlite"

    def append(
        self,
        stage: str,
        step: int,
        groups: Sequence[Group],
        scores: Sequence[Sequence[Score]] | None = None,
        credits: Sequence[Sequence[Credit]] | None = None,
    ) -> None:
        """Adds the groups of a step, all or none; scores and credits align with each group's `trajectories`."""
        with self._lock, self._write() as database:
            where = "FROM episodes WHERE stage = ? AND step = ?"
            part, place = database.execute(
                f"SELECT coalesce(max(part), -1) + 1, coalesce(max(place), -1) + 1 {where}", (stage, step)
            ).fetchone()
            records, entries = describe(stage, step, part, place, groups, scores, credits)
            if not entries:
                return
            step_file.write(self._file(stage, step, part), records, [vars(entry) for entry in entries])
            _insert(database, entries)

    def truncate(self, stage: str, step: int) -> None:
        """Removes what the stage recorded at this step and later, for a run that resumes there."""
        with self._lock, self._write() as database:
            database.execute("DELETE FROM episodes WHERE stage = ? AND step >= ?", (stage, step))
        for path in self.tokens.iterdir():
            found = re.fullmatch(rf"{re.escape(_quoted(stage))}-(\d+)-\d+\.npz", path.name)
            if found and int(found[1]) >= step:
                with writing(path):
                    path.unlink()

    def query(
        self,
        *,
        stage: str | None = None,
        step: int | range | None = None,
        id: str | None = None,
        task: str | None = None,
        env: str | None = None,
        tag: str | None = None,
        split: str | None = None,
        success: bool | None = None,
        failed: bool | None = None,
        newest: bool = False,
        limit: int | None = None,
        offset: int = 0,
    ) -> Iterator[Entry]:
        """The rows that fit every given filter, in order of recording, without loading them all.

        `failed` asks for episodes with (True) or without (False) an infrastructure failure.
        """
        clauses: list[tuple[str, list[Any]]] = [
            (f"{name} = ?", [value])
            for name, value in {"stage": stage, "id": id, "task": task, "env": env, "split": split}.items()
            if value is not None
        ]
        if isinstance(step, range):
            marks = ",".join("?" * len(step)) if step.step != 1 else ""
            clauses.append(
                (f"step IN ({marks})", list(step)) if marks else ("step >= ? AND step < ?", [step.start, step.stop])
            )
        elif step is not None:
            clauses.append(("step = ?", [step]))
        if tag is not None:
            clauses.append(("EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)", [tag]))
        if success is not None:
            clauses.append((f"success {'>' if success else '='} 0", []))
        if failed is not None:
            clauses.append((f"error IS {'NOT ' if failed else ''}NULL", []))
        where = " AND ".join(clause for clause, _ in clauses) or "1"
        way = "DESC" if newest else "ASC"
        order = ", ".join(f"{column} {way}" for column in ("stage", "step", "part", "number"))
        statement = f"SELECT {', '.join(COLUMNS)} FROM episodes WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"
        values = [value for _, given in clauses for value in given]
        return self._rows(statement, (*values, -1 if limit is None else limit, offset), from_row)

    def steps(self) -> list[StepCount]:
        """Every step of every stage, with how much it holds and its mean reward and success."""
        statement = (
            "SELECT stage, step, count(DISTINCT place), count(*), avg(reward), avg(success) "
            "FROM episodes GROUP BY stage, step ORDER BY stage, step"
        )
        return list(self._rows(statement, (), lambda row: StepCount(*row)))

    def record(self, episode_id: str) -> Record:
        """The episode with its scores and credits, as last recorded."""
        statement = f"SELECT {', '.join(COLUMNS)} FROM episodes WHERE id = ? ORDER BY step, part"
        found = list(self._rows(statement, (episode_id,), from_row))
        if not found:
            raise RecordError(f"episode {episode_id!r} is not in {self.path}: expected an id that `query` gives")
        return self.read(found[-1])

    def load(self, episode_id: str) -> Episode:
        return self.record(episode_id).episode

    def read(self, entry: Entry) -> Record:
        """The full record of a row."""
        with StepFile(self._file(entry.stage, entry.step, entry.part)) as file:
            return file.record(entry.number)

    def groups(self, stage: str, steps: Iterable[int] | None = None) -> Iterator[Group]:
        """The groups of a stage as they were recorded, step by step."""
        return (record.group for record in self.records(stage, steps))

    def records(self, stage: str, steps: Iterable[int] | None = None) -> Iterator[GroupRecord]:
        """The groups of a stage with their judgements; what cannot be read is left out, with a warning that says so."""
        chosen = [count.step for count in self.steps() if count.stage == stage] if steps is None else steps
        for step in chosen:
            read = self.read_each(self.query(stage=stage, step=step))
            for _, members in groupby(read, key=lambda pair: pair[0].place):
                record = _group(list(members))
                if record is not None:
                    yield record

    def missing(self) -> list[str]:
        """One sentence for every record of the index that cannot be read; reads everything."""
        return [
            f"episode {entry.id} ({entry.stage}, step {entry.step}): {found}"
            for entry, found in self.read_each(self.query())
            if isinstance(found, RecordError)
        ]

    def close(self) -> None:
        for database in (self._writer, self._memory):
            if database is not None:
                database.close()
        self._writer = self._memory = None

    def __enter__(self) -> EpisodeStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def read_each(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Record | RecordError]]:
        """The record of each row, or why it cannot be read; a file is opened once for the rows that follow in it."""
        for (stage, step, part), rows in groupby(entries, key=lambda entry: (entry.stage, entry.step, entry.part)):
            try:
                file = StepFile(self._file(stage, step, part))
            except RecordError as error:
                yield from ((entry, error) for entry in rows)
                continue
            with file:
                for entry in rows:
                    try:
                        found: Record | RecordError = file.record(entry.number)
                    except RecordError as error:
                        found = error
                    yield entry, found

    def _file(self, stage: str, step: int, part: int) -> Path:
        return self.tokens / f"{_quoted(stage)}-{step:06d}-{part}.npz"

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        if self._writer is None:
            raise RecordError(f"{self.path} is open to read, not to write: open it with write=True")
        try:
            with self._writer:
                yield self._writer
        except sqlite3.Error as error:
            raise self._refused(error) from error

    def _open_to_write(self) -> sqlite3.Connection:
        if self.path.is_dir():
            raise RecordError(f"{self.path} is a folder, not a file: remove it, the index is made again from tokens/")
        found = "was lost"
        try:
            database = _prepare(self.path)
        except sqlite3.Error as error:
            if not _damage(error):
                raise self._refused(error) from error
            found = f"was damaged ({error}), moved to {self._move_aside().name}"
            database = _prepare(self.path)
        if any(self.tokens.iterdir()) and database.execute("SELECT 1 FROM episodes LIMIT 1").fetchone() is None:
            warnings.warn(f"{self.path} {found}, and is made again from tokens/", RuntimeWarning, stacklevel=3)
            self._rebuild(database)
        return database

    def _move_aside(self) -> Path:
        aside = self.path.with_suffix(".damaged")
        with writing(aside):
            self.path.replace(aside)
            for suffix in ("-wal", "-shm"):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        return aside

    def _refused(self, error: sqlite3.Error) -> RecordError:
        return RecordError(
            f"{self.path} cannot be written ({error}): make room, give leave to write there, and let no other program "
            "hold it; then go on"
        )

    def _rebuild(self, database: sqlite3.Connection) -> None:
        for path in sorted(self.tokens.glob("*.npz")):
            try:
                with StepFile(path) as file:
                    entries = [Entry(**{**row, "tags": tuple(row["tags"])}) for row in file.index()]
            except (RecordError, TypeError, KeyError) as error:
                warnings.warn(f"{path.name} is left out of the index: {error}", RuntimeWarning, stacklevel=4)
                continue
            with database:
                _insert(database, entries)

    def _rows(self, statement: str, values: Sequence[Any], make: Callable[[Any], Any]) -> Iterator[Any]:
        given = 0
        if self._memory is None and self.path.exists():
            try:
                with closing(_open_to_read(self.path)) as database:
                    for row in database.execute(statement, values):
                        given += 1
                        yield make(row)
                return
            except sqlite3.DatabaseError as error:
                warnings.warn(f"{self.path} is damaged ({error}): made again in memory", RuntimeWarning, stacklevel=3)
        with self._lock:
            if self._memory is None:
                self._memory = sqlite3.connect(":memory:", check_same_thread=False)
                self._memory.executescript(SCHEMA)
                self._rebuild(self._memory)
            rows = self._memory.execute(statement, values).fetchall()
        yield from (make(row) for row in rows[given:])


def _group(members: Sequence[tuple[Entry, Record | RecordError]]) -> GroupRecord | None:
    """The group of what could be read, None where nothing could; says what is left out."""
    records: list[Record] = []
    for entry, found in members:
        if isinstance(found, RecordError):
            warnings.warn(f"episode {entry.id} is left out: {found}", RuntimeWarning, stacklevel=3)
        else:
            records.append(found)
    if not records:
        return None
    first = members[0][0]
    return GroupRecord(
        stage=first.stage,
        step=first.step,
        group=Group(first.slot, records[0].episode.task, tuple(record.episode for record in records)),
        scores=tuple(score for record in records for score in record.scores),
        credits=tuple(credit for record in records for credit in record.credits),
    )


def _quoted(stage: str) -> str:
    return quote(stage, safe="")


def _prepare(path: Path) -> sqlite3.Connection:
    """The database, sound and with our table; raises what SQLite has against it."""
    database = sqlite3.connect(path, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.executescript(SCHEMA)
        if database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("quick_check failed")
        if tuple(column[1] for column in database.execute("PRAGMA table_info(episodes)")) != COLUMNS:
            raise sqlite3.DatabaseError("the table has other columns")
    except sqlite3.Error:
        database.close()
        raise
    return database


def _damage(error: sqlite3.Error) -> bool:
    """Whether the file is at fault (no database, or another's tables), not the disk, a lock or our rights."""
    return not isinstance(error, sqlite3.OperationalError) or error.sqlite_errorcode == sqlite3.SQLITE_ERROR


def _open_to_read(path: Path) -> sqlite3.Connection:
    address = path.resolve().as_uri()
    database = sqlite3.connect(f"{address}?mode=ro", uri=True)
    try:
        database.execute("SELECT 1 FROM episodes LIMIT 1").fetchone()
    except sqlite3.OperationalError:  # a folder that cannot be written cannot hold the log's shared memory
        database.close()
        database = sqlite3.connect(f"{address}?mode=ro&immutable=1", uri=True)
    return database


def _insert(database: sqlite3.Connection, entries: Sequence[Entry]) -> None:
    rows = [to_row(entry) for entry in entries]
    marks = ", ".join("?" * len(COLUMNS))
    database.executemany(f"INSERT OR REPLACE INTO episodes ({', '.join(COLUMNS)}) VALUES ({marks})", rows)
