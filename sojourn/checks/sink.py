"""Checks a sink in the folder of a made-up run: it takes all numbers of a run, spoils nothing there, and ends."""

from __future__ import annotations

import asyncio
import copy
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sojourn.checks.left_running import left_running, running
from sojourn.checks.promise import BrokenError, Promise, judge_all_awaited, require_config, require_methods
from sojourn.checks.report import Report
from sojourn.checks.synthetic import content
from sojourn.record.metrics import Line, NeedsPackages

CONFIG = {
    "name": "made",
    "seed": 0,
    "model": {"name": "tiny", "dtype": "fp32"},
    "stages": [{"name": "warmup", "steps": 2}, {"name": "rl", "steps": 3}],
}
LINES = (  # the steps of each stage begin at 0; numbers come and go, and need not be finite
    Line(0, "warmup", {"loss": 1.5, "episodes": 8}),
    Line(1, "warmup", {"loss": math.nan, "grad_norm": math.inf}),
    Line(0, "rl", {"reward": 0.25, "reward/format": -1.0, "kl": 0.0}),
    Line(1, "rl", {"reward": 0.5, "kl": -math.inf}),
    Line(2, "rl", {"reward": 1.0, "success": 1.0}),
)
LATER = LINES[3:]  # what a run writes again that is resumed from step 1 of its last stage
OWN_FILES = {"config.toml": 'name = "made"\n', "metrics.jsonl": '{"step": 0, "stage": "warmup", "loss": 1.5}\n'}
DESCRIPTORS = Path("/proc/self/fd")  # on Linux


@dataclass(frozen=True)
class Case:
    config: Any
    before: set[Any]

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yields the folder of a new run, with files that are the run's own."""
        with TemporaryDirectory(prefix="sojourn-check-") as name:
            folder = Path(name).resolve()
            for file, text in OWN_FILES.items():
                (folder / file).write_text(text)
            yield folder

    @contextmanager
    def bound(self, folder: Path, config: dict[str, Any] | None = None) -> Iterator[Any]:
        """Yields a sink of this folder, which is closed at the end, also where something fails before."""
        sink = self.config.bind(folder, copy.deepcopy(CONFIG) if config is None else config)
        try:
            yield sink
        except Exception:
            with suppress(Exception):  # the first failure is the one to tell
                sink.close()
            raise
        sink.close()

    def run(self, folder: Path, lines: tuple[Line, ...] = LINES) -> None:
        """Writes the lines to a sink of this folder, as a run does."""
        with self.bound(folder) as sink:
            for line in lines:
                sink.write(line.step, line.stage, dict(line.values))


async def check_sink(component: Any, *, timeout_s: float = 60.0) -> Report:
    """Returns the verdicts on a sink's config, which is bound to a temporary folder; each promise has `timeout_s`.

    A sink that sends numbers elsewhere sends those of the made-up run. Raises `MissingExtraError` where a package that
    it needs is not installed.
    """
    if isinstance(component, NeedsPackages):
        component.require_packages()
    case = Case(component, running())
    return Report(type(component).__name__, await judge_all_awaited(PROMISES, case, timeout_s))


async def _declares(case: Case) -> str:
    return require_config(case.config)


async def _binds(case: Case) -> str:
    require_methods(case.config, ["bind"], "a sink's config")
    with case.folder() as folder:
        sink = case.config.bind(folder, copy.deepcopy(CONFIG))
        require_methods(sink, ["write", "close"], "what bind() returns")
        sink.close()
    return "and closed again before anything was written"


async def _takes(case: Case) -> str:
    with case.folder() as folder:
        case.run(folder)
    return f"{len(LINES)} lines of two stages, numbers that are not finite included"


async def _leaves(case: Case) -> str:
    """Checks that the numbers, the config and the run's own files are afterwards what they were."""
    with case.folder() as folder:
        config = copy.deepcopy(CONFIG)
        with case.bound(folder, config) as sink:
            for line in LINES:
                values = dict(line.values)
                sink.write(line.step, line.stage, values)
                if list(values) != list(line.values) or content(values) != content(line.values):
                    raise BrokenError(f"the numbers of step {line.step} are not what they were before write()")
        if content(config) != content(CONFIG):
            raise BrokenError("the config is not what it was before bind(): it is the run's")
        for file, text in OWN_FILES.items():
            if not (folder / file).is_file() or (folder / file).read_text() != text:
                raise BrokenError(f"{file} is not what it was: it is the run's own file, write to another one")
    return "numbers, config and the run's own files"


async def _resumes(case: Case) -> str:
    """Checks that a sink which is bound again, as a resumed run does, erases nothing and takes steps once more."""
    with case.folder() as folder:
        case.run(folder)
        sizes = _sizes(folder)
        case.run(folder, ())
        now = _sizes(folder)
        if lost := [file for file, size in sizes.items() if now.get(file, 0) < size]:
            raise BrokenError(
                f"bound to the folder again, {lost[0].name} has {now.get(lost[0], 0)} bytes instead of "
                f"{sizes[lost[0]]}: a resumed run would erase what was written"
            )
        case.run(folder, LATER)
    return "bound again, with steps that were written before"


async def _closes(case: Case) -> str:
    with case.folder() as folder:
        with case.bound(folder) as sink:
            for line in LINES:
                sink.write(line.step, line.stage, dict(line.values))
        if opened := _open_files(folder):
            raise BrokenError(f"after close() {opened[0]} is still open")
        if left := await left_running({*case.before, asyncio.current_task()}):
            raise BrokenError(f"after close() there still runs {left[0]} ({len(left)} in all)")
    return "nothing is left open or running"


def _sizes(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_size for file in folder.rglob("*") if file.is_file()}


def _open_files(folder: Path) -> list[str]:
    """Returns the names of the files in a folder that this process has open; none where the system does not tell."""
    found: list[str] = []
    for descriptor in DESCRIPTORS.iterdir() if DESCRIPTORS.is_dir() else ():
        try:
            target = Path(os.readlink(descriptor))
        except OSError:  # the descriptor by which the list was read
            continue
        if target.is_relative_to(folder) and target.name:
            found.append(str(target.relative_to(folder)))
    return found


BOUND = ("it is bound to a run's folder",)
SOUND = (*BOUND, "it takes the numbers of a run")
PROMISES = (
    Promise("a config can name it", (), _declares),
    Promise(BOUND[0], (), _binds),
    Promise(SOUND[1], BOUND, _takes),
    Promise("it leaves what it is given", SOUND, _leaves),
    Promise("a resumed run goes on", SOUND, _resumes),
    Promise("it closes", SOUND, _closes),
)
