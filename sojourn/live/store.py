"""Keeps the sessions of a live service in one SQLite file: the service writes them, and training takes them.

A turn is on the disk before its reply leaves. A session is trained on once: the step that takes it is written down, so
that a run which is resumed takes the same sessions again at the same steps. What a person takes back is gone from the
file, with all copies that SQLite may keep of it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sojourn import codec
from sojourn.errors import RecordError
from sojourn.live.facts import SERVING, Candidate, Event, LiveSession, PendingRemoval, Release, Traffic, digest_of
from sojourn.live.schema import prepare
from sojourn.types import IntArray, Turn

FILE = "live.sqlite"
WAITING = "step IS NULL AND ended IS NOT NULL AND consent AND EXISTS (SELECT 1 FROM turns WHERE session = key)"
BUSY_S = 30.0  # for which one process waits while another writes
READ_S = 2.0  # for which who only reads waits
COPIES_S = 0.2  # for which the removal of copies waits for who reads


class _PlainTurn(codec.PlainTurn):
    context: list[int]
    tokens: list[int]
    logprobs: list[float]
    allowed: list[list[int] | None] | None

    def turn(self) -> Turn:
        allowed = self.allowed
        return self.with_arrays(
            np.array(self.context, dtype=np.int64),
            np.array(self.tokens, dtype=np.int64),
            np.array(self.logprobs, dtype=np.float32),
            None if allowed is None else tuple(map(_ids, allowed)),
        )


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def _ids(ids: list[int] | None) -> IntArray | None:
    return None if ids is None else np.array(ids, dtype=np.int64)


def _written(turn: Turn) -> bytes:
    sample = turn.sample
    allowed = None if sample.allowed is None else [None if ids is None else ids.tolist() for ids in sample.allowed]
    return codec.to_json(
        {
            "parent": turn.parent,
            "context": turn.context.tolist(),
            "tokens": sample.tokens.tolist(),
            "logprobs": sample.logprobs.astype(float).tolist(),
            **codec.turn_to_plain(turn, allowed),
        }
    )


@dataclass
class LiveStore:
    """The store of a service in a folder, which is made where there is none."""

    folder: Path
    _opened: sqlite3.Connection | None = field(default=None, repr=False)
    _copies: bool = True  # whether the write-ahead log may hold what was removed

    @classmethod
    def to_read(cls, folder: Path) -> LiveStore:
        """Returns a store that writes nothing; raises RecordError where there is none that can be read."""
        path = folder / FILE
        try:
            database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=READ_S)
        except sqlite3.Error as error:
            raise RecordError(f"{path} cannot be opened ({error}): expected the store of a service") from error
        database.text_factory = _text
        return cls(folder, database)

    @property
    def path(self) -> Path:
        return self.folder / FILE

    @property
    def weights(self) -> Path:
        """Returns the folder of what is offered, which may serve."""
        return self.folder / "releases"

    @property
    def _database(self) -> sqlite3.Connection:
        if self._opened is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._opened = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
                self._opened.execute("PRAGMA journal_mode = WAL")
                self._opened.execute("PRAGMA synchronous = NORMAL")  # nothing is lost when a process is killed
                self._opened.execute("PRAGMA secure_delete = ON")
                prepare(self._opened)
            except sqlite3.Error as error:
                raise RecordError(f"{self.path} cannot be opened ({error}): expected the store of a service") from error
        return self._opened

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Writes all or nothing."""
        database = self._database
        try:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
        except sqlite3.Error as error:
            raise RecordError(f"{self.path} cannot be written ({error}): free disk space, then go on") from error

    # -- the service

    def open(self, key: str, person: str, release: int, *, consent: bool, opened: float | None = None) -> None:
        """Keeps a session, which began at a time (None: now), unless one of its key is kept."""
        now = time.time()
        with self._writing() as database:
            database.execute(
                "INSERT OR IGNORE INTO sessions (key, person, consent, release, opened, touched) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (key, person, consent, release, now if opened is None else opened, now),
            )

    def add_turn(self, key: str, number: int, turn: Turn) -> None:
        """Keeps a turn. One of a session that has ended, or is gone, is kept nowhere."""
        with self._writing() as database:
            found = database.execute(
                "UPDATE sessions SET touched = ? WHERE key = ? AND ended IS NULL", (time.time(), key)
            )
            if found.rowcount:
                database.execute("INSERT OR IGNORE INTO turns VALUES (?, ?, ?)", (key, number, _written(turn)))

    def agree(self, key: str, consent: bool, person: str = "") -> None:
        """Says whether a session may be trained on, and whose it is; it holds until training takes it."""
        with self._writing() as database:
            database.execute(
                "UPDATE sessions SET consent = ?, person = COALESCE(NULLIF(?, ''), person) WHERE key = ?",
                (consent, person, key),
            )

    def add_feedback(self, key: str, id: str, turn: int, value: float | None) -> bool:
        """Keeps what a person said of a turn, in [-1, 1], once for each `id`: a later value replaces it, and None takes
        it back. Returns whether it still counts, as it does until training takes the session."""
        with self._writing() as database:
            row = database.execute("SELECT step FROM sessions WHERE key = ?", (key,)).fetchone()
            if row is None or row[0] is not None:
                return False
            if value is None:
                database.execute("DELETE FROM feedback WHERE session = ? AND id = ?", (key, id))
            else:
                database.execute(
                    "INSERT OR REPLACE INTO feedback VALUES (?, ?, ?, ?, ?)", (key, id, turn, value, time.time())
                )
        return True

    def end(self, key: str) -> None:
        with self._writing() as database:
            database.execute("UPDATE sessions SET ended = ? WHERE key = ? AND ended IS NULL", (time.time(), key))

    def end_idle(self, seconds: float, but: Collection[str] = ()) -> list[str]:
        """Ends the sessions in which nothing was asked for so long, but for some, and returns their keys."""
        with self._writing() as database:
            idle = database.execute(
                "SELECT key FROM sessions WHERE ended IS NULL AND touched < ?", (time.time() - seconds,)
            ).fetchall()
            keys = [key for (key,) in idle if key not in but]
            database.executemany("UPDATE sessions SET ended = touched WHERE key = ?", [(key,) for key in keys])
        return keys

    def forget(self, *, key: str | None = None, person: str | None = None) -> list[str]:
        """Removes a session, or all of a person, for ever; returns their keys. Those that training took are to be
        removed from its records, too: `removals` has them until that is done."""
        column, value = ("key", key) if person is None else ("person", person)
        with self._writing() as database:
            rows = database.execute(
                f"DELETE FROM sessions WHERE {column} = ? RETURNING key, stage, step", (value,)
            ).fetchall()
            for gone, stage, step in rows:
                database.execute("DELETE FROM turns WHERE session = ?", (gone,))
                database.execute("DELETE FROM feedback WHERE session = ?", (gone,))
                if step is not None:
                    removal = PendingRemoval(digest_of(gone), stage, step)
                    database.execute("INSERT OR REPLACE INTO removals VALUES (?, ?, ?)", removal)
        self._copies = True
        self.without_copies()
        return [gone for gone, *_ in rows]

    def removals(self) -> list[PendingRemoval]:
        """Returns what is still to be removed from the records of training."""
        rows = self._database.execute("SELECT digest, stage, step FROM removals ORDER BY stage, step").fetchall()
        return [PendingRemoval(*row) for row in rows]

    def removed(self, removals: Iterable[PendingRemoval]) -> None:
        """Forgets removals that are done."""
        with self._writing() as database:
            database.executemany("DELETE FROM removals WHERE digest = ? AND stage = ? AND step = ?", removals)

    def expire(self, seconds: float) -> list[str]:
        """Removes the sessions that ended so long ago."""
        rows = self._database.execute("SELECT key FROM sessions WHERE ended < ?", (time.time() - seconds,)).fetchall()
        return [gone for (key,) in rows for gone in self.forget(key=key)]

    def without_copies(self) -> bool:
        """Leaves no copy of what was removed in the file's write-ahead log; returns whether that could be done, as it
        cannot while another program reads what was there before."""
        if self._copies:
            self._database.execute(f"PRAGMA busy_timeout = {COPIES_S * 1000:.0f}")
            try:
                [busy, *_] = self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                self._copies = bool(busy)
            finally:
                self._database.execute(f"PRAGMA busy_timeout = {BUSY_S * 1000:.0f}")
        return not self._copies

    # -- training

    def take(
        self, stage: str, step: int, width: int, per_person: int = 0, max_age: int = 0
    ) -> list[LiveSession] | None:
        """Returns the sessions of a step: those that it took before, else the `width` that ended first of those that
        may be trained on and were taken by none; None where there are not as many yet. Of a person, a step takes
        `per_person` at most (0: any number), and none that is older than `max_age` (0: of any age)."""
        with self._writing() as database:
            taken = self._sessions("stage = ? AND step = ? ORDER BY place", (stage, step))
            if taken:
                return taken
            found = self._ready(width, per_person, max_age)
            if len(found) < width:
                return None
            for place, one in enumerate(found):
                database.execute(
                    "UPDATE sessions SET stage = ?, step = ?, place = ? WHERE key = ?", (stage, step, place, one.key)
                )
        return found

    def ready(self, width: int, per_person: int = 0, max_age: int = 0) -> int:
        """Returns how many sessions a step could take now, `width` at most."""
        return len(self._ready(width, per_person, max_age))

    def _ready(self, width: int, per_person: int, max_age: int) -> list[LiveSession]:
        found, of_person = list[LiveSession](), dict[str, int]()
        for one in self._sessions(f"{WAITING} AND opened >= ? ORDER BY ended, key", (self._youngest(max_age),)):
            count = of_person.get(one.person, 0)
            if len(found) < width and not (per_person and count >= per_person):
                of_person[one.person] = count + 1
                found.append(one)
        return found

    def age(self, session: LiveSession) -> int:
        """Returns how often the weights that serve have changed since a session began."""
        return self._count("events WHERE kind = ? AND at > ?", (SERVING, session.opened))

    def too_old(self, max_age: int) -> int:
        """Returns how many sessions wait for training in vain, as they are older than `max_age`."""
        return self._count(f"sessions WHERE {WAITING} AND opened < ?", (self._youngest(max_age),))

    def _youngest(self, max_age: int) -> float:
        """Returns when the last `max_age` + 1 changes of the weights that serve began: what began before is too old."""
        statement = "SELECT at FROM events WHERE kind = ? ORDER BY at DESC LIMIT 1 OFFSET ?"
        found = self._database.execute(statement, (SERVING, max_age)).fetchone() if max_age else None
        return 0.0 if found is None else found[0]

    def _count(self, what: str, values: Sequence[object]) -> int:
        (count,) = self._database.execute(f"SELECT COUNT(*) FROM {what}", values).fetchone()
        return count

    def count(self, key: str) -> int:
        """Returns how many turns of a session are kept."""
        return self._count("turns WHERE session = ?", (key,))

    def turns(self, key: str) -> tuple[Turn, ...]:
        """Returns the turns of a session, with what its person said of them as their rewards: the sum, in [-1, 1]."""
        rows = self._database.execute("SELECT data FROM turns WHERE session = ? ORDER BY number", (key,)).fetchall()
        turns = [msgspec.convert(json.loads(data), _PlainTurn).turn() for (data,) in rows]
        said = defaultdict[int, float](float)
        for turn, value in self.feedback(key):
            said[turn] += value
        for turn, value in said.items():
            if 0 <= turn < len(turns):
                told, before = min(max(value, -1.0), 1.0), turns[turn]
                turns[turn] = replace(before, reward=before.reward + told, info={**before.info, "feedback": told})
        return tuple(turns)

    def feedback(self, key: str) -> list[tuple[int, float]]:
        """Returns what was said of a session: turns, and values."""
        rows = self._database.execute("SELECT turn, value FROM feedback WHERE session = ? ORDER BY id", (key,))
        return [(turn, value) for turn, value in rows.fetchall()]

    def scores(self, release: int, newest: int | None = None, since: float = 0.0) -> list[float]:
        """Returns the mean feedback of each of the newest sessions (None: of all) that a release answered and that have
        any, the newest first; of those alone that began at a time or later, and whose person still agrees."""
        rows = self._database.execute(
            "SELECT AVG(value) FROM feedback JOIN sessions ON key = session WHERE release = ? AND opened >= ? "
            "AND consent GROUP BY session ORDER BY MAX(at) DESC LIMIT ?",
            (release, since, -1 if newest is None else newest),
        )
        return [value for (value,) in rows.fetchall()]

    # -- releases

    def offer(self, step: int, folder: Path, panel: Mapping[str, float]) -> int:
        """Keeps weights that may serve, and returns their number."""
        with self._writing() as database:
            (last,) = database.execute("SELECT COALESCE(MAX(number), -1) FROM releases").fetchone()
            number = last + 1
            database.execute(
                "INSERT INTO releases VALUES (?, ?, ?, ?, ?)",
                (number, step, str(folder), json.dumps(dict(panel)), time.time()),
            )
        return number

    def releases(self) -> list[Release]:
        rows = self._database.execute("SELECT number, step, folder, panel FROM releases ORDER BY number").fetchall()
        return [
            Release(number, step, self._weights_at(written), json.loads(panel)) for number, step, written, panel in rows
        ]

    def _weights_at(self, written: str) -> Path:
        """Returns where weights are: here, if the run's folder was moved or copied since that was written down."""
        here = self.weights / Path(written).name
        return here if here.is_dir() else Path(written)

    def tell(self, kind: str, release: int | None, reason: str) -> None:
        """Writes down what became of a release."""
        self.add_events(Event(time.time(), kind, release, reason))

    def add_events(self, *events: Event, of: Candidate | None = None) -> None:
        """Writes down what became of releases, together with the candidate that was judged, unless it was before."""
        with self._writing() as database:
            database.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", events)
            if of is not None:
                database.execute("INSERT OR IGNORE INTO candidates VALUES (?, ?, ?)", of)

    def events(self, skip: int = 0) -> list[Event]:
        """Returns all events but the first `skip`, the oldest first."""
        statement = "SELECT at, kind, release, reason FROM events ORDER BY rowid LIMIT -1 OFFSET ?"
        return [Event(*row) for row in self._database.execute(statement, (skip,)).fetchall()]

    def candidate(self, evaluation: str) -> Candidate | None:
        """Returns what was decided of the candidate of an evaluation, None where it was not judged."""
        statement = "SELECT evaluation, refused, back_to FROM candidates WHERE evaluation = ?"
        row = self._database.execute(statement, (evaluation,)).fetchone()
        return None if row is None else Candidate(*row)

    def refused_in_a_row(self) -> int:
        """Returns how many of the last candidates were refused, since one was offered or the learner went back."""
        last = "SELECT MAX(rowid) FROM candidates WHERE refused = '' OR back_to IS NOT NULL"
        return self._count(f"candidates WHERE rowid > COALESCE(({last}), 0)", ())

    # -- what is shown

    def add_traffic(self, requests: Mapping[Traffic, int]) -> None:
        """Counts requests that have ended."""
        with self._writing() as database:
            database.executemany(
                "INSERT INTO traffic VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET requests = requests + excluded.requests",
                [(*one, count) for one, count in requests.items()],
            )

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Returns what a statement reads."""
        return self._database.execute(statement, values).fetchall()

    def session(self, key: str) -> LiveSession | None:
        found = self._sessions("key = ?", (key,))
        return found[0] if found else None

    def sessions(self, newest: int = 1_000) -> list[LiveSession]:
        return self._sessions("1 ORDER BY opened DESC LIMIT ?", (newest,))

    def _sessions(self, where: str, values: Sequence[object] = ()) -> list[LiveSession]:
        columns = ", ".join(LiveSession._fields)
        rows = self._database.execute(f"SELECT {columns} FROM sessions WHERE {where}", values).fetchall()
        return [LiveSession(*row)._replace(consent=bool(row[2])) for row in rows]

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
