"""Stores every episode of a run: an SQLite index to search, and files of full records for each step.

The files in `tokens/` are authoritative: each is written whole before its rows are committed, and holds its rows, so
that a lost or damaged index can be rebuilt. Readers never lock out the writer (SQLite's write-ahead log).
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from sojourn.errors import RecordError
from sojourn.models.asking import Exchange
from sojourn.record.atomic import writing
from sojourn.record.episodes import index, removal, step_file
from sojourn.record.episodes.episode_row import COLUMNS, OLDEST_COLUMNS, EpisodeRow, StepCount, describe, from_values
from sojourn.record.episodes.group import GroupRecord, group_of
from sojourn.record.episodes.reused import reused as reused_rows
from sojourn.record.episodes.step_file import Record, StepFile
from sojourn.record.search.excerpt import Excerpt, excerpts
from sojourn.record.search.query import Query
from sojourn.record.search.search_results import MAX_PAGE_ROWS, SearchResult, SearchResults, expression, page
from sojourn.types import Credit, Episode, Group, Score, Streams

Result = TypeVar("Result")
Read = TypeVar("Read")


class EpisodeStore:
    """The episodes of one run folder; with `write=False` (the default) to read, also while another process writes."""

    def __init__(self, folder: str | Path, *, write: bool = False) -> None:
        self.folder = Path(folder)
        self.tokens = self.folder / "tokens"
        self._lock = threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._rebuilt_rows: sqlite3.Connection | None = None  # has the rows alone, if the file is damaged
        self._rebuilt_index: sqlite3.Connection | None = None  # has the words, too, if the file cannot be searched
        self.troubles: list[str] = []  # a sentence for each damage that was met so far
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
        reused: Sequence[Group] = (),
        asked: Mapping[str, Sequence[Exchange]] | None = None,
    ) -> None:
        """Adds the groups of a step, all or none; judgements align with each group's `trajectories`. Of `reused` ones,
        which the stage recorded before, only the place of that record is added. `asked` is by the episodes' ids."""
        with self._lock, self._write() as database:
            part, place = index.next_numbers(database, stage, step)
            records, rows = describe(stage, step, part, place, groups, scores, credits, streams or {}, asked or {})
            again = reused_rows(database, stage, step, part, reused)
            if not rows and not again:
                return
            episodes = [index.index_episode(row, record.episode) for row, record in zip(rows, records, strict=True)]
            index_rows, again_rows = [vars(row) for row in rows], [group._asdict() for group in again]
            step_file.write(self.step_path(stage, step, part), records, index_rows, again_rows)
            index.insert(database, episodes)
            index.insert_reused(database, again)

    def truncate(self, stage: str, step: int) -> None:
        """Removes what the stage recorded at this step and later, for a run that resumes there."""
        with self._lock, self._write() as database:
            index.remove(database, stage, step)
        for path in self.tokens.iterdir():
            match = re.fullmatch(rf"{re.escape(quote(stage, safe=''))}-(\d+)-\d+\.npz", path.name)
            if match and int(match[1]) >= step:
                with writing(path):
                    path.unlink()

    def remove(self, ids: Collection[str]) -> list[str]:
        """Removes episodes for ever, with all that is recorded of them; returns the ids of those that were there."""
        with self._lock:
            with self._write() as database:
                removed = removal.remove(database, self.folder, self.step_path, ids)
            with self._write() as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # no copy stays in the log
        return removed

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
    ) -> Iterator[EpisodeRow]:
        """Yields the rows that match every given filter, in order of recording, without loading them all.

        `failed` selects episodes with (True) or without (False) an infrastructure failure.
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
        direction = "DESC" if newest else "ASC"
        order = ", ".join(f"{column} {direction}" for column in ("stage", "step", "part", "number"))
        statement = f"SELECT {{columns}} FROM episodes WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"
        values = [value for _, given in clauses for value in given]
        return self._rows(statement, (*values, -1 if limit is None else limit, offset), from_values)

    def ids_starting_with(self, text: str, limit: int) -> list[str]:
        """Returns up to `limit` ids that start with `text`, sorted."""
        statement = "SELECT DISTINCT id FROM episodes WHERE id >= ? AND substr(id, 1, ?) = ? ORDER BY id LIMIT ?"
        return list(self._rows(statement, (text, len(text), text, limit), lambda row: row[0]))

    def holds(self, stage: str, ids: Iterable[str]) -> set[str]:
        """Returns those of the ids under which the stage recorded an episode."""
        statement = "SELECT id FROM episodes WHERE id IN (SELECT value FROM json_each(?)) AND stage = ?"
        return set(self._rows(statement, (json.dumps(list(ids)), stage), lambda row: row[0]))

    def search(self, query: Query | str, limit: int = 20, after: str = "") -> SearchResults:
        """Returns a page of what matches a query, with excerpts if it has words; `after` is `next` of the page before.

        Raises QueryError if the query is malformed, and for an `after` that no page returned.
        """
        query = Query.parse(query) if isinstance(query, str) else query
        found_page = self._query_index(lambda database: page(database, query, limit, after), query.asks_tools)
        results = map(SearchResult, found_page.rows, self._excerpts(found_page.rows, query))
        return SearchResults(tuple(results), found_page.total, found_page.next)

    def matching(self, query: Query | str) -> Iterator[EpisodeRow]:
        """Yields all rows that match a query, in order of recording unless it sorts, without loading them all."""
        query = Query.parse(query) if isinstance(query, str) else query
        query = replace(query, sort="oldest") if query.sort == Query().sort else query
        after: str | None = ""
        while after is not None:
            found_page = self._query_index(
                lambda database, after=after: page(database, query, MAX_PAGE_ROWS, after, MAX_PAGE_ROWS),
                query.asks_tools,
            )
            yield from found_page.rows
            after = found_page.next

    def labels(self, kind: Literal["tag", "tool"]) -> list[str]:
        """Returns every tag, or the name of every tool that was called, sorted."""
        return self._query_index(lambda database: index.labels(database, kind))

    def rows(self, statement: str, values: Sequence[Any], make: Callable[[Any], Result]) -> list[Result]:
        """Returns the rows of an SQL statement on the table `episodes`, each converted by `make`."""
        return list(self._rows(statement, values, make))

    def steps(self) -> list[StepCount]:
        """Returns the counts of every step of every stage."""
        statement = (
            "SELECT stage, step, count(DISTINCT place), count(*), avg(reward), avg(success) "
            "FROM episodes GROUP BY stage, step ORDER BY stage, step"
        )
        return list(self._rows(statement, (), lambda row: StepCount(*row)))

    def record(self, episode_id: str) -> Record:
        """Returns the episode with its scores and credits, as last recorded; raises RecordError if there is none."""
        statement = "SELECT {columns} FROM episodes WHERE id = ? ORDER BY step, part"
        rows = list(self._rows(statement, (episode_id,), from_values))
        if not rows:
            raise RecordError(f"episode {episode_id!r} is not in {self.path}: expected an id that `query` gives")
        return self.read(rows[-1])

    def load(self, episode_id: str) -> Episode:
        return self.record(episode_id).episode

    def read(self, row: EpisodeRow) -> Record:
        """Returns the full record of a row."""
        with StepFile(self.step_path(row.stage, row.step, row.part)) as file:
            return file.record(row.number)

    def groups(self, stage: str, steps: Iterable[int] | None = None) -> Iterator[Group]:
        """Yields the groups of a stage as they were recorded, step by step."""
        return (record.group for record in self.records(stage, steps))

    def records(self, stage: str, steps: Iterable[int] | None = None) -> Iterator[GroupRecord]:
        """Yields the groups of a stage with their judgements; it warns of each record that cannot be read."""
        chosen = [count.step for count in self.steps() if count.stage == stage] if steps is None else steps
        for step in chosen:
            read = self.read_each(self.query(stage=stage, step=step))
            for _, members in groupby(read, key=lambda pair: pair[0].place):
                record = group_of(list(members))
                if record is not None:
                    yield record

    def unreadable(self) -> list[str]:
        """Reads every record of the index, and returns a sentence for each that cannot be read."""
        return [
            f"episode {row.id} ({row.stage}, step {row.step}): {loaded}"
            for row, loaded in self.read_each(self.query())
            if isinstance(loaded, RecordError)
        ]

    def close(self) -> None:
        for database in (self._writer, self._rebuilt_rows, self._rebuilt_index):
            if database is not None:
                database.close()
        self._writer = self._rebuilt_rows = self._rebuilt_index = None

    def __enter__(self) -> EpisodeStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def read_each(
        self, rows: Iterable[EpisodeRow], read: Callable[[StepFile, int], Read] = StepFile.record
    ) -> Iterator[tuple[EpisodeRow, Read | RecordError]]:
        """Yields each row with its record, or with the error if that cannot be read.

        A file is opened once for consecutive rows that are in it.
        """
        for (stage, step, part), of_file in groupby(rows, key=lambda row: (row.stage, row.step, row.part)):
            try:
                file = StepFile(self.step_path(stage, step, part))
            except RecordError as error:
                yield from ((row, error) for row in of_file)
                continue
            with file:
                for row in of_file:
                    try:
                        record: Read | RecordError = read(file, row.number)
                    except RecordError as error:
                        record = error
                    yield row, record

    def _excerpts(self, rows: Sequence[EpisodeRow], query: Query) -> list[Excerpt | None]:
        if not query.words or not rows:
            return [None] * len(rows)
        read = self.read_each(sorted(rows, key=_position), StepFile.without_tokens)
        episodes = {_position(row): None if isinstance(loaded, RecordError) else loaded for row, loaded in read}
        return excerpts([episodes[_position(row)] for row in rows], expression(query.words, "OR"))

    def _query_index(self, run_query: Callable[[sqlite3.Connection], Result], tools: bool = False) -> Result:
        """Runs a query, which may ask for `tools`, on the index, or on one that is rebuilt and kept while the store is
        open, where that one cannot be asked it."""
        recorded = index.has_records(self.tokens)  # checked first, since a writer makes the tables before the files
        if self._rebuilt_index is None and self.path.exists():
            try:
                with closing(index.open_to_read(self.path)) as database:
                    if index.is_current(database) or (index.has_words(database) and not tools):
                        return run_query(database)
                    state = index.why_unsearchable(database)
            except sqlite3.DatabaseError as error:
                if not index.is_damage(error):
                    raise RecordError(f"{self.path} cannot be read now ({error}): try again") from error
                state = f"is damaged ({error})"
            if state:
                self._warn(
                    f"{self.path} {state}: open it once with write=True; until then such a search begins by reading "
                    "all of tokens/"
                )
        if not recorded:
            with closing(index.in_memory()) as empty:  # what lies there by now may not be committed
                return run_query(empty)
        with self._lock:
            if self._rebuilt_index is None:
                self._rebuilt_index = self._rebuild(texts=True)
            return run_query(self._rebuilt_index)

    def step_path(self, stage: str, step: int, part: int) -> Path:
        """Returns the path of the full records of one part of a step."""
        return self.tokens / f"{quote(stage, safe='')}-{step:06d}-{part}.npz"

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        if self._writer is None:
            raise RecordError(f"{self.path} is open to read, not to write: open it with write=True")
        try:
            with self._writer:
                yield self._writer
        except sqlite3.Error as error:
            raise self._write_error(error) from error

    def _open_to_write(self) -> sqlite3.Connection:
        if self.path.is_dir():
            raise RecordError(f"{self.path} is a folder, not a file: remove it, the index is made again from tokens/")
        state = "was lost"
        try:
            database = index.prepare(self.path)
        except index.OlderIndexError as error:
            state = f"{error}, was moved to {self._move_aside('.older').name}"
            database = index.prepare(self.path)
        except sqlite3.Error as error:
            if not index.is_damage(error):
                raise self._write_error(error) from error
            state = f"was damaged ({error}), moved to {self._move_aside('.damaged').name}"
            database = index.prepare(self.path)
        if any(self.tokens.iterdir()) and database.execute("SELECT 1 FROM episodes LIMIT 1").fetchone() is None:
            self._warn(f"{self.path} {state}, and is made again from tokens/")
            for sentence in index.rebuild(database, self.tokens):
                self._warn(sentence)
        return database

    def _move_aside(self, suffix: str) -> Path:
        aside = self.path.with_suffix(suffix)
        with writing(aside):
            self.path.replace(aside)
            for log in index.LOG_SUFFIXES:
                Path(f"{self.path}{log}").unlink(missing_ok=True)
        return aside

    def _write_error(self, error: sqlite3.Error) -> RecordError:
        return RecordError(
            f"{self.path} cannot be written ({error}): free disk space, allow writing there, and let no other program "
            "hold it; then go on"
        )

    def _rows(self, statement: str, values: Sequence[Any], make: Callable[[Any], Any]) -> Iterator[Any]:
        """Yields the rows of a statement, in which `{columns}` stands for the columns that the index has.

        If the index is lost or damaged, the rows, or those that are left, come from one that is rebuilt in memory.
        """
        yielded, recorded = 0, index.has_records(self.tokens)
        index.require_storable(values)
        if self._rebuilt_rows is None and self.path.exists():
            try:
                with closing(index.open_to_read(self.path)) as database:
                    columns = COLUMNS if index.has_words(database) else OLDEST_COLUMNS
                    for row in database.execute(statement.replace("{columns}", ", ".join(columns)), values):
                        yielded += 1
                        yield make(row)
                return
            except sqlite3.DatabaseError as error:
                if not recorded and "no such table" in str(error):
                    return  # a writer is about to make it
                self._warn(f"{self.path} is damaged ({error}): made again in memory")
        elif not recorded:
            return
        with self._lock:
            if self._rebuilt_rows is None:
                self._rebuilt_rows = self._rebuild(texts=False)
            rows = self._rebuilt_rows.execute(statement.replace("{columns}", ", ".join(COLUMNS)), values).fetchall()
        yield from (make(row) for row in rows[yielded:])

    @property
    def rebuilt(self) -> bool:
        """Returns whether the index was rebuilt for this store, so that the store is worth keeping open."""
        return self._rebuilt_rows is not None or self._rebuilt_index is not None

    def _rebuild(self, *, texts: bool) -> sqlite3.Connection:
        """Rebuilds the index for this store alone."""
        if not self.path.exists() and any(self.tokens.glob("*.npz")):
            self.troubles.append(f"{self.path} is missing: its rows are read from tokens/")
        database = index.in_memory()
        for sentence in index.rebuild(database, self.tokens, texts=texts):
            self._warn(sentence)
        return database

    def _warn(self, trouble: str) -> None:
        """Warns at the line of whoever uses the store."""
        self.troubles.append(trouble)
        warnings.warn(trouble, RuntimeWarning, stacklevel=4)


def _position(row: EpisodeRow) -> tuple[str, int, int, int]:
    return row.stage, row.step, row.part, row.number
