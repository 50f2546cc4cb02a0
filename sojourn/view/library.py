"""The runs that a viewer shows: found under its folders, named by where they lie, and read anew when they change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sojourn.errors import RecordError
from sojourn.record import metrics
from sojourn.record.metrics import Line
from sojourn.record.standing import Standing, run_folders, standing

WATCHED = ("metrics.jsonl", "evaluations.json", "episodes.sqlite", "episodes.sqlite-wal", "failure.json", "lock")
Stamp = tuple[tuple[int, int], ...]


@dataclass
class Library:
    """`folders` are runs, or hold runs. A run's key is its folder's name, numbered where two have the same."""

    folders: Sequence[Path]
    _standings: dict[Path, tuple[Stamp, Standing]] = field(default_factory=dict)
    _lines: dict[Path, tuple[Stamp, list[Line]]] = field(default_factory=dict)

    def paths(self) -> dict[str, Path]:
        """The folders of all runs by key, those that changed last first."""
        named: dict[str, Path] = {}
        for path in run_folders([folder for folder in self.folders if folder.is_dir()]):
            key, number = path.absolute().name, 1
            while key in named:
                number += 1
                key = f"{path.absolute().name}~{number}"
            named[key] = path
        return dict(reversed(named.items()))

    def path(self, key: str) -> Path:
        paths = self.paths()
        if key not in paths:
            raise RecordError(f"there is no run '{key}' in {', '.join(map(str, self.folders))}: it may have been moved")
        return paths[key]

    def standings(self) -> Iterator[tuple[str, Standing]]:
        for key, path in self.paths().items():
            yield key, self.standing(path)

    def standing(self, path: Path) -> Standing:
        """How a run stands; whether it runs is asked each time, the rest where its files have changed."""
        now = stamp(path)
        kept = self._standings.get(path)
        if kept is None or kept[0] != now or kept[1].state == "running":
            kept = self._standings[path] = (now, standing(path))
        return kept[1]

    def lines(self, path: Path) -> list[Line]:
        """The metrics of all steps; of a file that cannot be read none, as its standing says what is missing."""
        now = stamp(path, WATCHED[:1])
        kept = self._lines.get(path)
        if kept is None or kept[0] != now:
            try:
                found = list(metrics.read(path / WATCHED[0]))
            except RecordError:
                found = []
            kept = self._lines[path] = (now, found)
        return kept[1]


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
