"""A cache of the run folders that a viewer shows: each is read again only when its files have changed."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sojourn.errors import RecordError
from sojourn.models import questions
from sojourn.record import metrics, parts
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.metrics import Line
from sojourn.record.parts import PARTS, Reading
from sojourn.record.run_status import RunStatus, locked, read_status, run_folders

INDEX_FILES = ("episodes.sqlite", "episodes.sqlite-wal", "tokens")
WATCHED_FILES = (
    "metrics.jsonl", "evaluations.json", "episodes.sqlite", "episodes.sqlite-wal", "failure.json", "lock", PARTS,
    questions.FILE, f"{questions.FILE}-wal",
)  # fmt: skip
LIVE_FILES = ("live/live.sqlite", "live/live.sqlite-wal", "live/FREEZE")
Stamps = tuple[tuple[int, int], ...]


class Metrics(NamedTuple):
    """The metrics of a run's steps. `problem` is a sentence about lines that cannot be read, empty if all can."""

    lines: Sequence[Line]
    problem: str


class Readings(NamedTuple):
    """Holds what the parts of a run did. `problem` is a sentence where that cannot be read."""

    readings: Sequence[Reading]
    problem: str = ""


@dataclass
class RunCache:
    """Finds the runs in `folders`, which are runs or hold runs, and caches what is read of them.

    A run's key is the name of its folder, with a number appended where two folders have the same name.
    """

    folders: Sequence[Path]
    _statuses: dict[Path, tuple[Stamps, RunStatus]] = field(default_factory=dict)
    _lines: dict[Path, tuple[Stamps, Metrics]] = field(default_factory=dict)
    _stores: dict[Path, tuple[Stamps, EpisodeStore]] = field(default_factory=dict)
    _readings: dict[Path, tuple[Stamps, Readings]] = field(default_factory=dict)

    def paths(self) -> dict[str, Path]:
        """Returns the folders of all runs by key, the last changed first."""
        paths: dict[str, Path] = {}
        for path in run_folders([folder for folder in self.folders if folder.is_dir()]):
            name = key = Path(os.path.abspath(path)).name.encode(errors="backslashreplace").decode()
            number = 1
            while key in paths:
                number += 1
                key = f"{name}~{number}"
            paths[key] = path
        return dict(reversed(paths.items()))

    def path(self, key: str) -> Path:
        """Returns the folder of a run; raises RecordError if there is no run of this key."""
        paths = self.paths()
        if key not in paths:
            folders = ", ".join(map(str, self.folders))
            raise RecordError(f"there is no run '{key}' in {folders}: it may have been moved or deleted")
        return paths[key]

    def statuses(self) -> Iterator[tuple[str, RunStatus]]:
        """Yields the key and the status of every run."""
        for key, path in self.paths().items():
            yield key, self.status(path)

    def status(self, path: Path) -> RunStatus:
        """Returns the status of a run. The cached one is used only if no file has changed and the run is not running,
        because a process may die without writing anything."""
        stamps = file_stamps(path)
        cached = self._statuses.get(path)
        if cached is None or cached[0] != stamps or cached[1].state == "running":
            cached = self._statuses[path] = (stamps, read_status(path))
        return cached[1]

    def lines(self, path: Path) -> Sequence[Line]:
        """Returns the metrics of all steps, without the lines that cannot be read."""
        return self._metrics(path).lines

    def metrics_problems(self, path: Path) -> list[str]:
        """Returns a sentence about the metrics that cannot be read, or nothing if all can."""
        problem = self._metrics(path).problem
        return [problem] if problem else []

    def _metrics(self, path: Path) -> Metrics:
        stamps = file_stamps(path, WATCHED_FILES[:1])
        cached = self._lines.get(path)
        if cached is None or cached[0] != stamps:
            cached = self._lines[path] = (stamps, _read_metrics(path / WATCHED_FILES[0]))
        return cached[1]

    def readings(self, path: Path) -> Readings:
        """Returns what the parts of a run did, oldest first."""
        stamps = file_stamps(path, (PARTS,))
        cached = self._readings.get(path)
        if cached is None or cached[0] != stamps:
            cached = self._readings[path] = (stamps, _read_parts(path / PARTS))
        return cached[1]

    @contextmanager
    def store(self, path: Path) -> Iterator[EpisodeStore]:
        """Opens the episodes of a run. An index that had to be rebuilt is kept open until the files change."""
        stamps = file_stamps(path, INDEX_FILES)
        cached = self._stores.get(path)
        if cached is not None and cached[0] == stamps:
            yield cached[1]
            return
        store = EpisodeStore(path)
        try:
            yield store
        finally:
            if store.rebuilt:
                self._stores[path] = (stamps, store)
            else:
                store.close()

    def fingerprint(self, key: str | None, live: bool = False) -> str:
        """Returns a hash that changes when the run of this key (or any run, for None) starts, goes on or ends, and with
        `live` when anything changes in the store of its service."""
        names = WATCHED_FILES + (LIVE_FILES if live else ())
        paths = {name: path for name, path in self.paths().items() if key in (None, name)}
        stamps = {name: (file_stamps(path, names), locked(path)) for name, path in paths.items()}
        return f"{zlib.crc32(repr(stamps).encode()):08x}"


def _read_parts(path: Path) -> Readings:
    try:
        found = tuple(parts.read(path))
        unread = parts.count_unread(path, len(found))
    except RecordError as error:
        return Readings((), str(error))
    return Readings(found, f"{path}: {unread} line{'s' * (unread > 1)} damaged, and left out" if unread > 0 else "")


def _read_metrics(path: Path) -> Metrics:
    try:
        lines = list(metrics.read(path))
        unread = metrics.count_unread(path, len(lines))
    except FileNotFoundError:
        return Metrics((), f"{path} is missing: there are no curves")
    except (RecordError, OSError) as error:
        return Metrics((), str(error))
    problem = f"{path}: {unread} line{'s' * (unread > 1)} cut off or damaged, and left out" if unread > 0 else ""
    return Metrics(tuple(lines), problem)


def file_stamps(path: Path, names: Sequence[str] = WATCHED_FILES) -> Stamps:
    """Returns the size and the modification time of some files of a run, (-1, -1) for a missing one."""
    stamps: list[tuple[int, int]] = []
    for name in names:
        try:
            state = (path / name).stat()
            stamps.append((state.st_size, state.st_mtime_ns))
        except OSError:
            stamps.append((-1, -1))
    return tuple(stamps)
