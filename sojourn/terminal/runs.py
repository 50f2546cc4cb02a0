"""The list of runs, and where two of them differ."""

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
from sojourn.terminal.clean import line
from sojourn.terminal.plain import plain
from sojourn.terminal.rows import Column, rows

HEARD = ("versions.config", "versions.began")  # told elsewhere, or always different
STYLES = {State.RUNNING: "green", State.FAILED: "red", State.DAMAGED: "red", State.STOPPED: "yellow"}
ARROW = " -> "
LISTED = 500  # differences


def chosen(folders: Sequence[Path], name: str = "", tag: str = "") -> list[RunStatus]:
    """The runs under some folders whose names hold a text and that have a tag; newest last."""
    found = [read_status(path) for path in run_folders(folders) if name.lower() in path.absolute().name.lower()]
    return [run for run in found if not tag or tag in run.tags]


def table(runs: Sequence[RunStatus], width: int) -> Group:
    """One row for each run; with what is wrong with it below."""
    columns = [
        Column(heading="run", cells=[line(run.name) for run in runs]),
        Column(heading="state", cells=[run.state for run in runs]),
        Column(heading="step", cells=[_step(run) for run in runs]),
        Column(heading="success now", cells=[_now(run) for run in runs], leaves=1),
        Column(heading="evaluations", cells=[_evaluations(run) for run in runs]),
        Column(heading="tags", cells=[line(", ".join(run.tags)) for run in runs], leaves=2),
        Column(heading="changed", cells=[_ago(run.changed) for run in runs], leaves=3),
        Column(heading="model", cells=[line(run.model) for run in runs], leaves=4),
        Column(heading="worlds", cells=[line(", ".join(run.worlds)) for run in runs], leaves=5),
    ]
    wrong = [". ".join([*([f"failed: {run.cause}"] if run.cause else []), *run.missing]) for run in runs]
    notes = [Text(line(said, 500), "dim") for said in wrong]
    return Group(*rows(columns, width, notes, [STYLES.get(run.state, "") for run in runs]))


def as_json(runs: Sequence[RunStatus]) -> str:
    """For scripts: a list of runs with all that is known of them."""
    return json.dumps([{"name": run.name, **plain(run)} for run in runs], indent=1)


class Difference(NamedTuple):
    """A value by its dotted key in two runs, None where a run has no such key."""

    key: str
    old: str | None
    new: str | None


def differences(old: Path, new: Path) -> list[Difference]:
    """Where two runs differ: in what they were told, in their seeds, and in what was installed."""
    values = [_facts(RunFolder.read(path)) for path in (old, new)]
    keys = dict.fromkeys([*values[0], *values[1]])
    return [
        Difference(key, values[0].get(key), values[1].get(key))
        for key in keys
        if values[0].get(key) != values[1].get(key)
    ]


def difference_table(old: Path, new: Path) -> Group:
    found = differences(old, new)
    lines = [Text(line(f"{old} -> {new}"), "dim")]
    if not found:
        return Group(*lines, Text("they were told the same, with the same seeds and packages"))
    for key, before, after in found[:LISTED]:
        told = Text(line(key))
        told.append(" = ").append("(absent)" if before is None else line(before), "red")
        told.append(ARROW).append("(absent)" if after is None else line(after), "green")
        lines.append(told)
    if len(found) > LISTED:
        lines.append(Text(f"and {len(found) - LISTED:,} more: --json tells them all", "dim"))
    return Group(*lines)


def flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Values by dotted path; tables in a list stand under their names, where each has its own, else their numbers."""
    tables = isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value)
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(item, f"{path}.{key}" if path else str(key))
    elif tables:
        names = [item.get("name") for item in value]
        own = len(set(map(str, names))) == len(names) and None not in names
        for number, item in enumerate(value):
            yield from flat(item, f"{path}.{names[number] if own else number}")
    else:
        yield path, json.dumps(value, default=str, ensure_ascii=False)


def _facts(run: RunFolder) -> dict[str, str]:
    """All that decides a run, by dotted key; tables with names also say which comes at which place."""
    facts = dict(flat(run.config))
    try:
        facts |= dict(flat(run.seeds, "seeds"))
        facts |= dict(flat(run.models, "models"))
        facts |= {key: text for key, text in flat(run.versions, "versions") if key not in HEARD}
    except RecordError as error:
        facts["damaged"] = str(error)
    return facts


def _step(run: RunStatus) -> str:
    return f"{run.stage} {run.step}/{run.steps}" if run.total else ""


def _now(run: RunStatus) -> str:
    return "" if run.success is None else run.success.percent


def _evaluations(run: RunStatus) -> str:
    """Before and after, the last with its interval."""
    found = [evaluation.summary.overall.success for evaluation in run.evaluations]
    if not found:
        return ""
    *earlier, last = (found[0], found[-1]) if len(found) > 1 else found
    return ARROW.join([*(f"{100 * estimate.mean:.0f}%" for estimate in earlier), last.percent])


def _ago(changed: float) -> str:
    """How long ago, roughly."""
    seconds = max(time.time() - changed, 0.0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now"
