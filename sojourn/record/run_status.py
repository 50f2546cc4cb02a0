"""Reads the status of a run: its config, whether it is running, how far it is, and the results of its evaluations."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sojourn.errors import RecordError
from sojourn.files import descriptor as open_descriptor
from sojourn.intervals import Estimate, wilson
from sojourn.record import metrics
from sojourn.record.changes import recorded_changes
from sojourn.record.run import RunFolder
from sojourn.record.stopped import stopped_stages
from sojourn.record.summary import Summary

Value = TypeVar("Value")
SKIPPED_CHECKPOINTS = "passed_over.json"  # a sentence for each damaged checkpoint that a resumed run skipped
CHAT_FORMAT = "chat_format.json"  # which chat format the model is given, and why
FAILURE = "failure.json"  # why a run failed


class State(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"  # by a person or the system; it can be resumed
    FAILED = "failed"
    DAMAGED = "damaged"  # its config cannot be read


class Evaluated(NamedTuple):
    name: str
    summary: Summary


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The status of a run: `step` of the `steps` of `stage` are done, and `done` of `total` over all stages.

    `success` is that of the last step. `missing` has a sentence for each part of the folder that cannot be read, and
    `cause` says why the run failed.
    """

    path: Path
    state: State
    recipe: str = ""
    model: str = ""
    worlds: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    seed: int | None = None
    stage: str = ""
    step: int = 0
    steps: int = 0
    done: int = 0
    total: int = 0
    success: Estimate | None = None
    evaluations: tuple[Evaluated, ...] = ()
    changed: float = 0.0  # seconds since the epoch
    cause: str = ""
    stopped: tuple[str, ...] = ()  # a sentence for each stage that was stopped early
    changes: tuple[str, ...] = ()  # a sentence for each resume that changed the config
    missing: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return Path(os.path.abspath(self.path)).name


def run_folders(folders: Sequence[Path]) -> list[Path]:
    """Returns the runs in some folders, each a run or a folder of runs, with the last changed at the end."""
    paths: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise RecordError(f"no folder '{folder}': train something first, or name the folder that holds your runs")
        inside = [path for path in folder.iterdir() if not path.name.startswith(".")]  # hidden: one that is being made
        paths += [folder] if _is_run(folder) else filter(_is_run, inside)
    return sorted(dict.fromkeys(paths), key=_changed)


def _is_run(folder: Path) -> bool:
    """Returns whether a folder holds a run, including one that lost its config."""
    return any((folder / name).is_file() for name in ("config.toml", "metrics.jsonl", "episodes.sqlite"))


def read_status(path: Path) -> RunStatus:
    """Returns the status of a run; damage to its folder is reported in `missing` and raises nothing."""
    missing: list[str] = []

    def read_or(read: Callable[[], Value], default: Value) -> Value:
        try:
            return read()
        except RecordError as error:
            missing.append(str(error))
            return default

    try:
        run = RunFolder.read(path)
    except RecordError as error:
        return RunStatus(path=path, state=State.DAMAGED, changed=_changed(path), missing=(str(error),))
    config = read_or(lambda: run.config, {})
    evaluations = read_or(
        lambda: [Evaluated(e["name"], Summary.from_json(e["summary"])) for e in run.evaluations()], []
    )
    last = read_or(lambda: metrics.last(path / "metrics.jsonl"), None)
    cause = str(_table(read_or(lambda: run.read_json(FAILURE, {}), {})).get("cause", ""))
    early = read_or(lambda: stopped_stages(run), {})
    stopped = tuple(f"stage '{stage}' ended after step {one.step}: {one.reason}" for stage, one in early.items())
    changes = tuple(map(str, read_or(lambda: recorded_changes(run), [])))
    missing += _skipped_checkpoints(run)
    stages = [(str(s.get("name", "")), _count(s.get("steps"))) for s in _tables(config.get("stages"))]
    evaluated = {evaluation.name for evaluation in evaluations}
    if locked(path):
        state = State.RUNNING
    elif missing and not config:
        state = State.DAMAGED
    elif (stages or evaluated) and evaluated.issuperset(name for name, _ in stages):
        state = State.FINISHED
    else:
        state = State.FAILED if cause else State.STOPPED
    return RunStatus(
        path=path,
        state=state,
        recipe=str(config.get("name", "")),
        model=str(_table(config.get("model")).get("name", "")),
        worlds=tuple(_worlds(_table(config.get("env")))),
        tags=_tags(_table(config.get("record")).get("tags")),
        seed=config.get("seed"),
        **_progress(stages, last),
        success=_success(last),
        evaluations=tuple(evaluations),
        changed=_changed(path),
        cause=cause if state is State.FAILED else "",
        stopped=stopped,
        changes=changes,
        missing=tuple(missing),
    )


def _skipped_checkpoints(run: RunFolder) -> list[str]:
    """Returns a sentence for each checkpoint that was skipped, or for the file of them if it cannot be read."""
    try:
        sentences = run.read_json(SKIPPED_CHECKPOINTS, [])
    except RecordError as error:
        return [str(error)]
    return [f"resumed: {sentence}" for sentence in sentences] if isinstance(sentences, list) else []


def locked(folder: Path) -> bool:
    """Returns whether a process holds the run's lock, and so writes to it.

    It takes the lock for a moment; a writer that starts just then waits for it.
    """
    try:
        descriptor = open_descriptor(folder / "lock")
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False


def _progress(stages: Sequence[tuple[str, int]], last: metrics.Line | None) -> dict[str, Any]:
    """Returns the fields of a `RunStatus` that say how far the run is."""
    total = sum(steps for _, steps in stages)
    if last is None:
        return {"stage": stages[0][0] if stages else "", "steps": stages[0][1] if stages else 0, "total": total}
    names = [name for name, _ in stages]
    at = names.index(last.stage) if last.stage in names else 0
    done = sum(steps for _, steps in stages[:at]) + last.step + 1
    steps = stages[at][1] if last.stage in names else 0
    return {"stage": last.stage, "step": last.step + 1, "steps": steps, "done": done, "total": total}


def _success(last: metrics.Line | None) -> Estimate | None:
    """Returns the success rate of the last step, its episodes taken as independent; None for demonstrations."""
    rate = None if last is None else last.values.get("success")
    if last is None or rate is None:
        return None
    episodes = last.values.get("episodes", 0.0)
    return wilson(rate * episodes, episodes) if episodes > 0 else None


def _worlds(env: Mapping[str, Any]) -> Iterator[str]:
    for world in _tables(env.get("worlds")) or [env]:
        if name := str(world.get("name", "")):
            yield name


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _tables(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _tags(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _changed(path: Path) -> float:
    """Returns when the run last wrote a metric, an evaluation or its config, in seconds since the epoch."""
    times = []
    for name in ("metrics.jsonl", "evaluations.json", "config.toml"):
        try:
            times.append((path / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
