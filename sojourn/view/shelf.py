"""The runs that a viewer shows: found under its folders, named by where they lie, and read anew when they change."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sojourn.errors import RecordError
from sojourn.record import metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.metrics import Line
from sojourn.record.run_status import RunStatus, locked, read_status, run_folders

INDEX = ("episodes.sqlite", "episodes.sqlite-wal", "tokens")
WATCHED = ("metrics.jsonl", "evaluations.json", "episodes.sqlite", "episodes.sqlite-wal", "failure.json", "lock")
Stamp = tuple[tuple[int, int], ...]


class Lines(NamedTuple):
    """The metrics of a run's steps, and a sentence on what of them cannot be read, empty where all can."""

    read: Sequence[Line]
    trouble: str


@dataclass
class Shelf:
    """`folders` are runs, or hold runs. A run's key is its folder's name, numbered where two have the same."""

    folders: Sequence[Path]
    _standings: dict[Path, tuple[Stamp, RunStatus]] = field(default_factory=dict)
    _lines: dict[Path, tuple[Stamp, Lines]] = field(default_factory=dict)
    _stores: dict[Path, tuple[Stamp, EpisodeStore]] = field(default_factory=dict)

    def paths(self) -> dict[str, Path]:
        """The folders of all runs by key, those that changed last first."""
        named: dict[str, Path] = {}
        for path in run_folders([folder for folder in self.folders if folder.is_dir()]):
            name = key = Path(os.path.abspath(path)).name.encode(errors="backslashreplace").decode()
            number = 1
            while key in named:
                number += 1
                key = f"{name}~{number}"
            named[key] = path
        return dict(reversed(named.items()))

    def path(self, key: str) -> Path:
        paths = self.paths()
        if key not in paths:
            raise RecordError(f"there is no run '{key}' in {', '.join(map(str, self.folders))}: it may have been moved")
        return paths[key]

    def standings(self) -> Iterator[tuple[str, RunStatus]]:
        for key, path in self.paths().items():
            yield key, self.standing(path)

    def standing(self, path: Path) -> RunStatus:
        """How a run stands; whether it runs is asked each time, the rest where its files have changed."""
        now = stamp(path)
        kept = self._standings.get(path)
        if kept is None or kept[0] != now or kept[1].state == "running":
            kept = self._standings[path] = (now, read_status(path))
        return kept[1]

    def lines(self, path: Path) -> Sequence[Line]:
        """The metrics of all steps, without those that cannot be read."""
        return self._measured(path).read

    def lost(self, path: Path) -> list[str]:
        """A sentence on what of the metrics cannot be read."""
        trouble = self._measured(path).trouble
        return [trouble] if trouble else []

    def _measured(self, path: Path) -> Lines:
        now = stamp(path, WATCHED[:1])
        kept = self._lines.get(path)
        if kept is None or kept[0] != now:
            kept = self._lines[path] = (now, _lines(path / WATCHED[0]))
        return kept[1]

    @contextmanager
    def store(self, path: Path) -> Iterator[EpisodeStore]:
        """The episodes of a run; an index that had to be made again is kept until the files change."""
        now = stamp(path, INDEX)
        kept = self._stores.get(path)
        if kept is not None and kept[0] == now:
            yield kept[1]
            return
        store = EpisodeStore(path)
        try:
            yield store
        finally:
            if store.rebuilt:
                self._stores[path] = (now, store)
            else:
                store.close()

    def mark(self, key: str | None) -> str:
        """What changes when the named run, or where none is named any run, goes on, begins or ends."""
        found = {name: (stamp(path), locked(path)) for name, path in self.paths().items() if key in (None, name)}
        return f"{zlib.crc32(repr(found).encode()):08x}"


def _lines(path: Path) -> Lines:
    try:
        found = list(metrics.read(path))
        left = metrics.count_unread(path, len(found))
    except FileNotFoundError:
        return Lines((), f"{path} is missing: there are no curves")
    except (RecordError, OSError) as error:
        return Lines((), str(error))
    lost = f"{path}: {left} line{'s' * (left > 1)} cut off or damaged, and left out" if left > 0 else ""
    return Lines(tuple(found), lost)


def stamp(path: Path, names: Sequence[str] = WATCHED) -> Stamp:
    """What changes when a run goes on: size and time of its files."""
    found: list[tuple[int, int]] = []
    for name in names:
        try:
            state = (path / name).stat()
            found.append((state.st_size, state.st_mtime_ns))
        except OSError:
            found.append((-1, -1))
    return tuple(found)
