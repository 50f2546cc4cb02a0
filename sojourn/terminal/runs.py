"""Prints the list of runs, and the differences between two runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group
from rich.text import Text

from sojourn.errors import RecordError
from sojourn.record.run import RunFolder
from sojourn.record.run_status import RunStatus, State, read_status, run_folders
from sojourn.terminal.clean import one_line
from sojourn.terminal.jsonable import jsonable
from sojourn.terminal.rows import Column, rows

IGNORED_VERSIONS = ("versions.config", "versions.began")  # compared as the config itself, and always different
STYLES = {State.RUNNING: "green", State.FAILED: "red", State.DAMAGED: "red", State.STOPPED: "yellow"}
ARROW = " -> "
MAX_DIFFERENCES = 500


MAX_NAMED = 5  # runs that a message names


def find_runs(folders: Sequence[Path], name: str = "", tag: str = "") -> list[RunStatus]:
    """Returns the runs under some folders whose name contains `name` and that have the tag, the newest last."""
    runs = [read_status(path) for path in run_folders(folders) if name.lower() in path.absolute().name.lower()]
    return [run for run in runs if not tag or tag in run.tags]


def none_found(where: str, folders: Sequence[Path], name: str, tag: str) -> str:
    """Returns the sentence that no run was found, with the names or tags that exist."""
    found = find_runs(folders)
    if not found:
        return f"there are no runs in '{where}' yet: start one with sojourn train recipes/toy/train.toml"
    conditions = [f"a name that contains '{name}'"] * bool(name) + [f"the tag '{tag}'"] * bool(tag)
    tags = sorted({tag for run in found for tag in run.tags})
    names = [run.name for run in found][-MAX_NAMED:]
    of_tags = f"the tags there are {', '.join(tags)}" if tags else "no run there has a tag"
    known = of_tags if tag else f"the newest are {', '.join(names)}"
    return f"none of {len(found)} runs in '{where}' has {' and '.join(conditions)}: {known}"


def table(runs: Sequence[RunStatus], width: int) -> Group:
    """Returns a table with one row per run, and its problems below it."""
    columns = [
        Column(heading="run", cells=[one_line(run.name) for run in runs]),
        Column(heading="state", cells=[run.state for run in runs]),
        Column(heading="step", cells=[_step(run) for run in runs]),
        Column(heading="in training", cells=[_now(run) for run in runs], drop_priority=1),
        Column(heading="evaluations", cells=[_evaluations(run) for run in runs]),
        Column(heading="tags", cells=[one_line(", ".join(run.tags)) for run in runs], drop_priority=2),
        Column(heading="changed", cells=[ago(run.changed) for run in runs], drop_priority=3),
        Column(heading="model", cells=[one_line(run.model) for run in runs], drop_priority=4),
        Column(heading="worlds", cells=[one_line(", ".join(run.worlds)) for run in runs], drop_priority=5),
    ]
    problems = [". ".join([*([f"failed: {run.cause}"] if run.cause else []), *run.missing]) for run in runs]
    notes = [Text(one_line(problem, 500), "dim") for problem in problems]
    return Group(*rows(columns, width, notes, [STYLES.get(run.state, "") for run in runs]))


def as_json(runs: Sequence[RunStatus]) -> str:
    """Returns the status of all runs as JSON."""
    return json.dumps([{"name": run.name, **jsonable(run)} for run in runs], indent=1)


class Difference(NamedTuple):
    """A dotted key whose values differ in two runs; None means that a run does not have the key."""

    key: str
    old: str | None
    new: str | None


def differences(old: Path, new: Path) -> list[Difference]:
    """Returns the differences of two runs in configuration, seeds, model revisions and package versions."""
    values = [_run_values(RunFolder.read(path)) for path in (old, new)]
    keys = dict.fromkeys([*values[0], *values[1]])
    return [
        Difference(key, values[0].get(key), values[1].get(key))
        for key in keys
        if values[0].get(key) != values[1].get(key)
    ]


def difference_table(old: Path, new: Path) -> Group:
    """Returns one line per difference of two runs."""
    differing = differences(old, new)
    lines = [Text(one_line(f"{old} -> {new}"), "dim")]
    if not differing:
        return Group(*lines, Text("These runs have the same configuration, seeds, models and packages."))
    for key, before, after in differing[:MAX_DIFFERENCES]:
        text = Text(one_line(key))
        text.append(" = ").append("(absent)" if before is None else one_line(before), "red")
        text.append(ARROW).append("(absent)" if after is None else one_line(after), "green")
        lines.append(text)
    if len(differing) > MAX_DIFFERENCES:
        lines.append(Text(f"and {len(differing) - MAX_DIFFERENCES:,} more: --json shows all", "dim"))
    return Group(*lines)


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted key and the JSON of every value. Tables in a list are keyed by name if all names differ, or by
    number."""
    tables = isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value)
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flatten(item, f"{path}.{key}" if path else str(key))
    elif tables:
        names = [item.get("name") for item in value]
        unique = len(set(map(str, names))) == len(names) and None not in names
        for number, item in enumerate(value):
            yield from flatten(item, f"{path}.{names[number] if unique else number}")
    else:
        yield path, json.dumps(value, default=str, ensure_ascii=False)


def _run_values(run: RunFolder) -> dict[str, str]:
    """Returns everything that determines a run, by dotted key: config, seeds, model revisions, package versions."""
    facts = dict(flatten(run.config))
    try:
        facts |= dict(flatten(run.seeds, "seeds"))
        facts |= dict(flatten(run.models, "models"))
        facts |= {key: text for key, text in flatten(run.versions, "versions") if key not in IGNORED_VERSIONS}
    except RecordError as error:
        facts["damaged"] = str(error)
    return facts


def _step(run: RunStatus) -> str:
    return f"{run.stage} {run.step}/{run.steps}" if run.total else ""


def _now(run: RunStatus) -> str:
    return "" if run.success is None else run.success.percent


def _evaluations(run: RunStatus) -> str:
    """Returns the success of the first and of the last evaluation, the last with its interval."""
    rates = [evaluation.summary.overall.success for evaluation in run.evaluations]
    if not rates:
        return ""
    *earlier, last = (rates[0], rates[-1]) if len(rates) > 1 else rates
    return ARROW.join([*(f"{100 * estimate.mean:.0f}%" for estimate in earlier), last.percent])


def ago(changed: float) -> str:
    """Returns how long ago a time was, roughly."""
    seconds = max(time.time() - changed, 0.0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now"
