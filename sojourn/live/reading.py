"""Reads the store of a live service for people who look at it: its sessions, its traffic, and its releases."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from sojourn.errors import RecordError
from sojourn.intervals import Estimate, mean
from sojourn.live.facts import Event, Release, Traffic
from sojourn.live.gate import FREEZE
from sojourn.live.store import FILE, WAITING, LiveStore

FOLDER = "live"  # in the run folder
BINS = 120  # counts of requests over time
BUSY = ("locked", "busy")  # in what SQLite says while another process holds the file


class SessionRow(NamedTuple):
    """A session as a table shows it: `turns` are counted, and `feedback` is the mean of the `values` that were given,
    unless its person does not agree any more. `stage` and `step` are those that trained on it."""

    key: str
    person: str
    consent: bool
    release: int
    opened: float
    touched: float
    ended: float | None
    stage: str | None
    step: int | None
    turns: int
    values: int
    feedback: float | None


class SessionCounts(NamedTuple):
    """Counts the kept sessions: all, those that go on, those that wait for training, and those that were trained."""

    all: int
    running: int
    waiting: int
    trained: int


class Requests(NamedTuple):
    """Counts requests for replies: all, those that failed, and those whose client left before it had the reply."""

    all: int
    failed: int
    left: int


class LiveReading(NamedTuple):
    """Holds what a store says: `sessions` are some of those that are counted, the newest first, and `feedback` is by
    release. `traffic` is counted over `minutes` from each of its minutes on."""

    counts: SessionCounts
    sessions: Sequence[SessionRow]
    releases: Sequence[Release]
    events: Sequence[Event]
    frozen: bool
    feedback: Mapping[int, Estimate]
    traffic: Mapping[Traffic, int]
    minutes: int

    def requests(self, release: int | None = None) -> Requests:
        """Returns the counts of a release's requests, or of all."""
        mine = [(one, count) for one, count in self.traffic.items() if release in (None, one.release)]
        return Requests(
            all=sum(count for _, count in mine),
            failed=sum(count for one, count in mine if one.failed),
            left=sum(count for one, count in mine if one.left),
        )


def has_store(run: Path) -> bool:
    """Returns whether a run folder has the store of a live service."""
    return (run / FOLDER / FILE).exists()


@contextmanager
def opened(run: Path) -> Iterator[LiveStore]:
    """Opens the store of a run to read; what keeps it from being read is a RecordError."""
    store = LiveStore.to_read(run / FOLDER)
    try:
        yield store
    except (sqlite3.Error, ValueError, TypeError, msgspec.MsgspecError) as error:
        if isinstance(error, sqlite3.OperationalError) and any(word in str(error) for word in BUSY):
            raise RecordError(f"{store.path} cannot be read now ({error}): another program holds it") from error
        raise RecordError(f"{store.path} is damaged ({error}): restore it from a copy") from error
    finally:
        store.close()


def read(run: Path, count: int, skip: int = 0) -> LiveReading:
    """Returns what the store of a run says, with `count` of its sessions after the first `skip`."""
    with opened(run) as store:
        minutes = _minutes(store)
        return LiveReading(
            counts=_counts(store),
            sessions=_sessions(store, "1 ORDER BY opened DESC, key LIMIT ? OFFSET ?", (count, skip)),
            releases=store.releases(),
            events=store.events(),
            frozen=(store.folder / FREEZE).exists(),
            feedback=_feedback(store),
            traffic=_traffic(store, minutes) if minutes else {},
            minutes=minutes,
        )


def session(store: LiveStore, key: str) -> SessionRow:
    """Returns a session of a store; raises RecordError where there is none of this key."""
    found = _sessions(store, "key = ?", (key,))
    if not found:
        raise RecordError(f"no session '{key}' is kept in {store.path}: it may have been deleted")
    return found[0]


def _sessions(store: LiveStore, where: str, values: Sequence[object]) -> list[SessionRow]:
    rows = store.rows(
        "SELECT key, person, consent, release, opened, touched, ended, stage, step, "
        "(SELECT COUNT(*) FROM turns WHERE session = key), "
        "(SELECT COUNT(*) FROM feedback WHERE session = key AND consent), "
        f"(SELECT AVG(value) FROM feedback WHERE session = key AND consent) FROM sessions WHERE {where}",
        values,
    )
    return [SessionRow(*row)._replace(consent=bool(row[2])) for row in rows]


def _counts(store: LiveStore) -> SessionCounts:
    [row] = store.rows(
        "SELECT COUNT(*), COALESCE(SUM(ended IS NULL), 0), "
        f"COALESCE(SUM({WAITING}), 0), COALESCE(SUM(step IS NOT NULL), 0) "
        "FROM sessions"
    )
    return SessionCounts(*row)


def _feedback(store: LiveStore) -> dict[int, Estimate]:
    """Returns the mean feedback of the sessions that each release answered and whose persons agree."""
    values: defaultdict[int, list[float]] = defaultdict(list)
    for release, value in store.rows(
        "SELECT release, AVG(value) FROM feedback JOIN sessions ON key = session WHERE consent GROUP BY session"
    ):
        values[release].append(value)
    means = {release: mean(found) for release, found in values.items()}
    return {release: one._replace(low=max(one.low, -1.0), high=min(one.high, 1.0)) for release, one in means.items()}


def _minutes(store: LiveStore) -> int:
    """Returns over how many minutes requests are counted together, so that there are at most `BINS` counts; 0 where
    there are none."""
    if not store.rows("SELECT 1 FROM sqlite_master WHERE name = 'traffic'"):  # an older Sojourn counted none
        return 0
    [(span,)] = store.rows("SELECT MAX(minute) - MIN(minute) + 1 FROM traffic")
    return 0 if span is None else -(-span // BINS)


def _traffic(store: LiveStore, minutes: int) -> dict[Traffic, int]:
    rows = store.rows(
        "SELECT first + (minute - first) / ? * ? AS bin, release, api, status, SUM(requests) "
        "FROM traffic, (SELECT MIN(minute) AS first FROM traffic) GROUP BY 1, 2, 3, 4 ORDER BY 1",
        (minutes, minutes),
    )
    return {Traffic(*row[:4]): row[4] for row in rows}
