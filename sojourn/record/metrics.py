"""Writes the metrics of a run: to metrics.jsonl always, and to trackers on request. Metrics observe, they never steer.

The dataclasses are configs of sinks; `bind` opens one before the first step, so that a missing package is reported
early. Trackers get names of the form `<stage>/<name>`, since the steps of each stage start at 0.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple, Protocol, runtime_checkable

from sojourn.ability import Ability
from sojourn.config.fields import NONBLANK
from sojourn.errors import MissingExtraError, RecordError
from sojourn.files import descriptor, open_regular
from sojourn.record.atomic import writing

MAX_LINE_BYTES = 1 << 20  # of a line; real lines have some thousands
MAX_TAIL_BYTES = 1 << 26  # at the end of a file, in which its last line is searched
TRACKING = "pip install sojourn[tracking]"


class Line(NamedTuple):
    step: int
    stage: str
    values: dict[str, float]


class Jsonl:
    """Writes one JSON object per line, with step, stage and the values by name, and flushes each line.

    Numbers that are not finite are written as null and read back as NaN.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with writing(self.path):
            _drop_partial_line(self.path)
            self._file = self.path.open("a")

    def write(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        numbers = {name: float(value) for name, value in values.items()}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        with writing(self.path):
            self._file.write(json.dumps({"step": step, "stage": stage, **finite}) + "\n")
            self._file.flush()

    def truncate(self, step: int, stage: str | None = None) -> None:
        """Removes the first line at or after `step` (of `stage`, if given) and all that follow, for a resumed run."""
        with writing(self.path):
            self._file.close()
            _truncate(self.path, step, stage)
            self._file = self.path.open("a")

    def close(self) -> None:
        with writing(self.path):
            self._file.close()


def read(path: str | Path) -> Iterator[Line]:
    """Yields the lines of a metrics.jsonl, except those that are damaged and a half-written last one."""
    path = Path(path)
    if not path.exists():
        return
    try:
        with open_regular(path) as file:
            for raw in _raw_lines(file):
                line = _parse(raw)
                if line is not None:
                    yield line
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}): restore it from a copy, or remove it") from error


def last(path: str | Path) -> Line | None:
    """Returns the last whole line of a metrics.jsonl, without reading all lines before it."""
    path = Path(path)
    if not path.exists():
        return None
    try:
        with open_regular(path) as file:
            size, tail = file.seek(0, os.SEEK_END), 1 << 16
            while True:
                file.seek(max(size - tail, 0))
                lines = file.read(tail).splitlines(keepends=True)
                whole = lines if tail >= size else lines[1:]
                found = [line for raw in whole if (line := _parse(raw)) is not None]
                if found or tail >= min(size, MAX_TAIL_BYTES):
                    return found[-1] if found else None
                tail *= 8
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}): restore it from a copy, or remove it") from error


class Sink(Protocol):
    """Takes the numbers of a run, besides its own file."""

    def write(self, step: int, stage: str, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class SinkConfig(Protocol):
    """The config of a sink, bound to a run's folder and its complete config."""

    def bind(self, folder: Path, config: Mapping[str, Any]) -> Sink: ...


class Sinks:
    """A sink that writes to several others."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = list(sinks)

    def add(self, sink: Sink) -> None:
        self.sinks.append(sink)

    def write(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        for sink in self.sinks:
            sink.write(step, stage, values)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


@runtime_checkable
class NeedsPackages(Ability, Protocol):
    """A sink that `require_packages` asks before a run begins; it raises `MissingExtraError` where one is missing."""

    def require_packages(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """Writes event files for `tensorboard --logdir` to `folder` in the run folder; a resumed run adds a second file."""

    folder: Annotated[str, NONBLANK] = "tensorboard"

    def __post_init__(self) -> None:
        if Path(self.folder).is_absolute() or ".." in Path(self.folder).parts:
            raise ValueError(f"folder = {self.folder!r}: expected a folder inside the run folder, such as 'events'")

    def require_packages(self) -> None:
        _require("tensorboard", "tensorboard", "torch")

    def bind(self, folder: Path, config: Mapping[str, Any]) -> Sink:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(f"sink 'tensorboard' needs tensorboard and torch ({error}): {TRACKING}") from error
        return _TensorBoard(SummaryWriter(str(folder / self.folder)))


@dataclass(frozen=True, kw_only=True)
class Wandb:
    """Logs to Weights & Biases; with "auto", online if this machine is logged in, else offline in the run folder."""

    project: Annotated[str, NONBLANK] = "sojourn"
    mode: Literal["auto", "online", "offline"] = "auto"

    def require_packages(self) -> None:
        _require("wandb", "wandb")

    def bind(self, folder: Path, config: Mapping[str, Any]) -> Sink:
        self.require_packages()
        import wandb

        mode = self.mode
        if mode == "auto":
            mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
        return _Wandb(
            wandb.init(
                project=self.project,
                name=folder.name,
                id=_stable_id(folder),
                dir=str(folder),
                mode=mode,
                config=dict(config),
                resume="allow" if mode == "online" else None,
            )
        )


@dataclass(frozen=True, kw_only=True)
class Trackio:
    """Logs to Trackio, in one folder per user (TRACKIO_DIR) or in the Hugging Face Space named `space`."""

    project: Annotated[str, NONBLANK] = "sojourn"
    space: str = ""

    def require_packages(self) -> None:
        _require("trackio", "trackio")

    def bind(self, folder: Path, config: Mapping[str, Any]) -> Sink:
        self.require_packages()
        import trackio

        opened = trackio.init(
            project=self.project,
            name=folder.name,
            space_id=self.space or None,
            config=dict(config),
            resume="allow",
            embed=False,
        )
        return _Trackio(opened)


def _require(sink: str, *packages: str) -> None:
    """Raises `MissingExtraError` where a package that a sink needs is not installed; imports none."""
    for package in packages:
        found = sys.modules[package] if package in sys.modules else find_spec(package)
        if found is None:
            raise MissingExtraError(f"sink '{sink}' needs {package}, which is not installed: {TRACKING}")


class _TensorBoard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"{stage}/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """Logs the step of each stage as a metric of its own, since W&B's steps must grow over the whole run."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._stages: set[str] = set()

    def write(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        if stage not in self._stages:
            self._stages.add(stage)
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
        self._run.log({**{f"{stage}/{name}": value for name, value in values.items()}, f"{stage}/step": step})

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        self._run.log({f"{stage}/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._run.finish()


def count_unread(path: Path, read: int) -> int:
    """Returns how many lines of a file could not be read, if `read` of them could."""
    with open_regular(path) as file:
        return sum(1 for _ in _raw_lines(file)) - read


def _raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a file; of a line that is longer than `MAX_LINE_BYTES` only the beginning."""
    while raw := file.readline(MAX_LINE_BYTES):
        yield raw
        while len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
            raw = file.readline(MAX_LINE_BYTES)


def _parse(raw: bytes) -> Line | None:
    if not raw.endswith(b"\n") or len(raw) >= MAX_LINE_BYTES:
        return None
    try:
        data = json.loads(raw)
        step, stage = int(data.pop("step")), str(data.pop("stage"))
        return Line(step, stage, {name: math.nan if value is None else float(value) for name, value in data.items()})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _truncate(path: Path, step: int, stage: str | None) -> None:
    """Removes the first line at or after the step, and all that follow it."""
    with _open_to_edit(path) as file:
        while raw := file.readline():
            line = _parse(raw)
            if line is not None and line.step >= step and stage in (None, line.stage):
                file.seek(-len(raw), os.SEEK_CUR)
                file.truncate()
                break


def _drop_partial_line(path: Path) -> None:
    """Removes a half-written last line, so that the next line starts on its own."""
    if not path.exists():
        return
    with _open_to_edit(path) as file:
        end = file.seek(0, os.SEEK_END)
        while end:  # block by block from the end, as the file may be of any size
            begin = max(end - MAX_LINE_BYTES, 0)
            file.seek(begin)
            at = file.read(end - begin).rfind(b"\n")
            if at >= 0:
                end = begin + at + 1
                break
            end = begin
        file.truncate(end)


def _open_to_edit(path: Path) -> BinaryIO:
    return os.fdopen(descriptor(path, os.O_RDWR), "rb+")


def _stable_id(folder: Path) -> str:
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
