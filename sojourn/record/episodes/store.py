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
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote

from sojourn.errors import RecordError
from sojourn.record.atomic import writing
from sojourn.record.episodes import index, step_file
from sojourn.record.episodes.episode_row import COLUMNS, FIRST, Entry, describe, from_row
from sojourn.record.episodes.group import GroupRecord, of_members
from sojourn.record.episodes.step_file import Record, StepFile
from sojourn.record.search.excerpt import Excerpt, excerpts
from sojourn.record.search.query import Query
from sojourn.record.search.search_results import MAX_PAGE_ROWS, SearchResults, SearchResult, expression, page
from sojourn.types import Credit, Episode, Group, Score, Streams

Answer = TypeVar("Answer")
Read = TypeVar("Read")


class StepCount(NamedTuple):
    """What one step of the store holds."""

    stage: str
    step: int
    groups: int
    episodes: int
    reward: float | None
    success: float | None


class EpisodeStore:
    """The episodes of one run folder. `write=False` (the default) only looks, also while another process writes."""

    def __init__(self, folder: str | Path, *, write: bool = False) -> None:
        self.folder = Path(folder)
        self.tokens = self.folder / "tokens"
        self._lock = threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._memory: sqlite3.Connection | None = None  # the rows, where the index is damaged
        self._searchable: sqlite3.Connection | None = None  # all of it, where it cannot be searched either
        self.troubles: list[str] = []  # what was found damaged so far, a sentence each
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
        streams: Streams | None = None,
    ) -> None:
        """Adds the groups of a step, all or none; judgements align with each group's `trajectories`."""
        with self._lock, self._write() as database:
            where = "FROM episodes WHERE stage = ? AND step = ?"
            part, place = database.execute(
                f"SELECT coalesce(max(part), -1) + 1, coalesce(max(place), -1) + 1 {where}", (stage, step)
            ).fetchone()
            records, entries = describe(stage, step, part, place, groups, scores, credits, streams or {})
            if not entries:
                return
            pairs = [index.indexed(entry, record.episode) for entry, record in zip(entries, records, strict=True)]
            step_file.write(self.file(stage, step, part), records, [vars(entry) for entry in entries])
            index.insert(database, pairs)

    def truncate(self, stage: str, step: int) -> None:
        """Removes what the stage recorded at this step and later, for a run that resumes there."""
        with self._lock, self._write() as database:
            index.remove(database, stage, step)
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
        statement = f"SELECT {{columns}} FROM episodes WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"
        values = [value for _, given in clauses for value in given]
        return self._rows(statement, (*values, -1 if limit is None else limit, offset), from_row)

    def beginning(self, text: str, limit: int) -> list[str]:
        """The ids that begin with a text, sorted."""
        statement = "SELECT DISTINCT id FROM episodes WHERE id >= ? AND substr(id, 1, ?) = ? ORDER BY id LIMIT ?"
        return list(self._rows(statement, (text, len(text), text, limit), lambda row: row[0]))

    def search(self, query: Query | str, limit: int = 20, after: str = "") -> SearchResults:
        """A page of what a query finds, with excerpts where it asks for words; `after` is `next` of the page before.

        Raises QueryError where the query cannot be read, and for an `after` that no page gave.
        """
        query = Query.parse(query) if isinstance(query, str) else query
        held = self._ask(lambda database: page(database, query, limit, after))
        return SearchResults(tuple(map(SearchResult, held.entries, self._excerpts(held.entries, query))), held.total, held.next)

    def matching(self, query: Query | str) -> Iterator[Entry]:
        """All that a query finds, in order of recording unless it says another order, without loading them all."""
        query = Query.parse(query) if isinstance(query, str) else query
        query = replace(query, sort="oldest") if query.sort == Query().sort else query
        after: str | None = ""
        while after is not None:
            held = self._ask(lambda database, after=after: page(database, query, MAX_PAGE_ROWS, after, most=MAX_PAGE_ROWS))
            yield from held.entries
            after = held.next

    def labels(self, kind: Literal["tag", "tool"]) -> list[str]:
        """Every tag, or every tool that was called, in order."""
        return self._ask(lambda database: index.labels(database, kind))

    def rows(self, statement: str, values: Sequence[Any], make: Callable[[Any], Answer]) -> list[Answer]:
        """What a statement says of the table `episodes`, for counts that no other method gives."""
        return list(self._rows(statement, values, make))

    def steps(self) -> list[StepCount]:
        """Every step of every stage, with how much it holds and its mean reward and success."""
        statement = (
            "SELECT stage, step, count(DISTINCT place), count(*), avg(reward), avg(success) "
            "FROM episodes GROUP BY stage, step ORDER BY stage, step"
        )
        return list(self._rows(statement, (), lambda row: StepCount(*row)))

    def record(self, episode_id: str) -> Record:
        """The episode with its scores and credits, as last recorded."""
        statement = "SELECT {columns} FROM episodes WHERE id = ? ORDER BY step, part"
        found = list(self._rows(statement, (episode_id,), from_row))
        if not found:
            raise RecordError(f"episode {episode_id!r} is not in {self.path}: expected an id that `query` gives")
        return self.read(found[-1])

    def load(self, episode_id: str) -> Episode:
        return self.record(episode_id).episode

    def read(self, entry: Entry) -> Record:
        """The full record of a row."""
        with StepFile(self.file(entry.stage, entry.step, entry.part)) as file:
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
                record = of_members(list(members))
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
        for database in (self._writer, self._memory, self._searchable):
            if database is not None:
                database.close()
        self._writer = self._memory = self._searchable = None

    def __enter__(self) -> EpisodeStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def read_each(
        self, entries: Iterable[Entry], read: Callable[[StepFile, int], Read] = StepFile.record
    ) -> Iterator[tuple[Entry, Read | RecordError]]:
        """The record of each row, or why it cannot be read; a file is opened once for the rows that follow in it."""
        for (stage, step, part), rows in groupby(entries, key=lambda entry: (entry.stage, entry.step, entry.part)):
            try:
                file = StepFile(self.file(stage, step, part))
            except RecordError as error:
                yield from ((entry, error) for entry in rows)
                continue
            with file:
                for entry in rows:
                    try:
                        found: Read | RecordError = read(file, entry.number)
                    except RecordError as error:
                        found = error
                    yield entry, found

    def _excerpts(self, entries: Sequence[Entry], query: Query) -> list[Excerpt | None]:
        if not query.words or not entries:
            return [None] * len(entries)
        read = self.read_each(sorted(entries, key=_position), StepFile.without_tokens)
        told = {_position(entry): None if isinstance(one, RecordError) else one for entry, one in read}
        episodes = [told[_position(entry)] for entry in entries]
        return excerpts(episodes, expression(query.words, "OR"))

    def _ask(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """Asks the index if it can be searched, else one that is made for as long as the store is open."""
        recorded = index.recorded_in(self.tokens)  # looked at first, as a writer makes the tables before the files
        if self._searchable is None and self.path.exists():
            try:
                with closing(index.open_to_read(self.path)) as database:
                    if index.current(database):
                        return question(database)
                    state = index.unfit(database)
            except sqlite3.DatabaseError as error:
                if not index.damage(error):
                    raise RecordError(f"{self.path} cannot be read now ({error}): try again") from error
                state = f"is damaged ({error})"
            if state:
                self._tell(
                    f"{self.path} {state}: open it once with write=True; until then a search begins by reading all "
                    "of tokens/"
                )
        if not recorded:
            with closing(self._remade(texts=True)) as nothing:
                return question(nothing)
        with self._lock:
            if self._searchable is None:
                self._searchable = self._remade(texts=True)
            return question(self._searchable)

    def file(self, stage: str, step: int, part: int) -> Path:
        """Where the full records of a part of a step are."""
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
        state = "was lost"
        try:
            database = index.prepare(self.path)
        except index.OlderError as error:
            state = f"has no words to search ({error}), was moved to {self._move_aside('.older').name}"
            database = index.prepare(self.path)
        except sqlite3.Error as error:
            if not index.damage(error):
                raise self._refused(error) from error
            state = f"was damaged ({error}), moved to {self._move_aside('.damaged').name}"
            database = index.prepare(self.path)
        if any(self.tokens.iterdir()) and database.execute("SELECT 1 FROM episodes LIMIT 1").fetchone() is None:
            self._tell(f"{self.path} {state}, and is made again from tokens/")
            for left in index.rebuild(database, self.tokens):
                self._tell(left)
        return database

    def _move_aside(self, suffix: str) -> Path:
        aside = self.path.with_suffix(suffix)
        with writing(aside):
            self.path.replace(aside)
            for log in index.LOGS:
                Path(f"{self.path}{log}").unlink(missing_ok=True)
        return aside

    def _refused(self, error: sqlite3.Error) -> RecordError:
        return RecordError(
            f"{self.path} cannot be written ({error}): make room, give leave to write there, and let no other program "
            "hold it; then go on"
        )

    def _rows(self, statement: str, values: Sequence[Any], make: Callable[[Any], Any]) -> Iterator[Any]:
        """Of a statement over `{columns}`: those that the index has, or today's where it is lost or damaged."""
        given, recorded = 0, index.recorded_in(self.tokens)
        require_within(values)
        if self._memory is None and self.path.exists():
            try:
                with closing(index.open_to_read(self.path)) as database:
                    columns = COLUMNS if index.current(database) else FIRST
                    for row in database.execute(statement.replace("{columns}", ", ".join(columns)), values):
                        given += 1
                        yield make(row)
                return
            except sqlite3.DatabaseError as error:
                if not recorded and "no such table" in str(error):
                    return  # a writer is about to make it
                self._tell(f"{self.path} is damaged ({error}): made again in memory")
        elif not recorded:
            return
        with self._lock:
            if self._memory is None:
                self._memory = self._remade(texts=False)
            rows = self._memory.execute(statement.replace("{columns}", ", ".join(COLUMNS)), values).fetchall()
        yield from (make(row) for row in rows[given:])

    @property
    def remade(self) -> bool:
        """Whether the index was made again for this store, so that it is worth keeping."""
        return self._memory is not None or self._searchable is not None

    def _remade(self, *, texts: bool) -> sqlite3.Connection:
        """The index made again for this store alone; SQLite keeps what memory has no room for in a nameless file."""
        if not self.path.exists() and any(self.tokens.glob("*.npz")):
            self.troubles.append(f"{self.path} is missing: its rows are read from tokens/")
        database = sqlite3.connect("", check_same_thread=False)
        database.executescript(index.SCHEMA)
        for left in index.rebuild(database, self.tokens, texts=texts):
            self._tell(left)
        return database

    def _tell(self, trouble: str) -> None:
        """Warns of it, in the line of whoever uses the store."""
        self.troubles.append(trouble)
        warnings.warn(trouble, RuntimeWarning, stacklevel=4)


def require_within(values: Sequence[Any]) -> None:
    """Raises RecordError for a number or a text that SQLite cannot hold, so that no row has it either."""
    for value in values:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise RecordError("no step, group or place has a number of more than 18 digits: give a smaller one")
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise RecordError(f"{value[:64]!r} is no text that anything is named by: it is not UTF-8") from None


def _position(entry: Entry) -> tuple[str, int, int, int]:
    return entry.stage, entry.step, entry.part, entry.number


def _quoted(stage: str) -> str:
    return quote(stage, safe="")
