"""Prints what the parts of a run do: samplers, trainer ranks, environment workers and the driver."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from sojourn.abilities import PartLoad, PartState
from sojourn.record.parts import PARTS, Reading, newest, read
from sojourn.terminal.clean import one_line, shell_word
from sojourn.terminal.jsonable import jsonable
from sojourn.terminal.numbers import number, size, sparkline
from sojourn.terminal.rows import Column, rows, total_width
from sojourn.terminal.runs import ago

BUSY = "busy_share"
MAX_COLUMNS, TREND = 40, 16
STYLES = {PartState.LOADING: "dim", PartState.SILENT: "yellow", PartState.DOWN: "red"}
NOTHING = "nothing is recorded of the parts of this run yet: it has ended no step, or an older Sojourn trained it"


class Kind(NamedTuple):
    """The parts of a kind in a reading, with what all of them have in common, and the names of their other facts and of
    their numbers."""

    title: str
    parts: Sequence[PartLoad]
    shared: Mapping[str, str]
    facts: Sequence[str]
    numbers: Sequence[str]


def kinds(reading: Reading) -> list[Kind]:
    """Returns the parts of a reading by kind."""
    return [_kind(name, parts) for name, parts in reading.kinds.items()]


def _kind(name: str, parts: Sequence[PartLoad]) -> Kind:
    known = sorted(parts, key=lambda part: -len(part.numbers))  # those that are down know less
    facts = list(dict.fromkeys(fact for part in known for fact in part.facts))
    numbers = list(dict.fromkeys(number for part in known for number in part.numbers))[:MAX_COLUMNS]
    same = {fact: {part.facts.get(fact, "") for part in parts if part.facts} for fact in facts}
    shared = {fact: next(iter(values)) for fact, values in same.items() if len(values) == 1}
    others = [fact for fact in facts if fact not in shared][:MAX_COLUMNS]
    return Kind(name if len(parts) == 1 else f"{len(parts)} {name}s", parts, shared, others, numbers)


def heading(name: str) -> str:
    """Returns the name of a number for people, without its unit."""
    for ending, spelled in (("_per_s", "/s"), ("_share", ""), ("_bytes", ""), ("_s", "")):
        if name.endswith(ending):
            return name.removesuffix(ending).replace("_", " ") + spelled
    return name.replace("_", " ")


def cell(name: str, value: float | None) -> str:
    """Returns a number with the unit that its name ends in."""
    if value is None or not math.isfinite(value):
        return "-"
    if name.endswith("_share"):
        return f"{100 * value:.0f}%"
    if name.endswith("_bytes"):
        return size(max(int(value), 0))
    if name.endswith("_s") and not name.endswith("_per_s"):
        return "0 s" if value == 0 else f"{number(value)} s" if value >= 0.1 else f"{number(1000 * value)} ms"
    return number(value)


def why(part: PartLoad) -> str:
    """Returns why a part is not up, and when it answered last; empty where it is up."""
    if part.state is PartState.UP or (part.state is PartState.LOADING and not part.note):
        return ""
    known = part.seen_s is not None and math.isfinite(part.seen_s)
    seen = f"last seen {part.seen_s:.0f} s before this reading" if known else "never seen"
    return "; ".join(filter(None, (part.note, seen)))


def history(readings: Sequence[Reading], name: str = BUSY) -> dict[str, list[float]]:
    """Returns a number of each part over the readings, NaN where a part did not say it."""
    found: dict[str, list[float]] = {}
    for at, reading in enumerate(readings):
        for part in reading.parts:
            values = found.setdefault(part.name, [])
            values += [math.nan] * (at - len(values))
            if len(values) == at:
                values.append(part.numbers.get(name, math.nan) if part.state is PartState.UP else math.nan)
    return {part: values + [math.nan] * (len(readings) - len(values)) for part, values in found.items()}


def when(reading: Reading) -> str:
    """Returns after which step a reading was taken."""
    return f"after step {reading.step} of {reading.stage}" if reading.step >= 0 else "before the first step"


def tables(path: Path, width: int) -> Group:
    """Returns a table for each kind of part of a run."""
    readings = list(read(path / PARTS))
    return Group(*_tables(readings, width)) if readings else Group(Text(NOTHING, "dim"))


def _tables(readings: Sequence[Reading], width: int) -> Iterator[RenderableType]:
    last, busy, complete = readings[-1], history(readings), True
    seconds = f"{number(last.over_s)} s" if math.isfinite(last.over_s) else "a time"
    head = f"parts {when(last)}, {ago(last.unix_s)}; means and rates are over the {seconds} before"
    yield Text(one_line(head), "dim")
    for kind in kinds(last):
        columns = _columns(kind, busy)
        complete = complete and total_width(columns) <= width
        shared = "  ".join(f"{one_line(name, 40)} {one_line(text, 80)}" for name, text in kind.shared.items())
        yield Text()
        yield Text(one_line(kind.title, 80), "bold").append(f"  {shared}", "not bold dim")
        notes = [Text(one_line(why(part)), STYLES.get(part.state, "")) for part in kind.parts]
        yield from rows(columns, width, notes, [STYLES.get(part.state, "") for part in kind.parts])
    if last.left_out:
        yield Text(f"and {last.left_out} parts that are not recorded", "dim")
    if not complete:
        yield Text("\nsome numbers do not fit: --json shows all of them", "dim")


def _columns(kind: Kind, busy: Mapping[str, Sequence[float]]) -> list[Column]:
    """Returns the columns of a table; of those that do not fit, the last are left out first."""
    parts = kind.parts
    trends = [sparkline(busy.get(part.name, ()), TREND, 0.0, 1.0) for part in parts]
    columns = [
        Column(heading="part", cells=[one_line(part.name, 40) for part in parts]),
        Column(heading="state", cells=[part.state.value for part in parts]),
    ]
    for at, name in enumerate(kind.numbers):
        cells = [cell(name, part.numbers.get(name)) for part in parts]
        columns.append(Column(heading=one_line(heading(name), 40), cells=cells, right=True, drop_priority=4 + at))
        if name == BUSY:
            columns.append(Column(heading="so far", cells=trends, drop_priority=3))
    for at, name in enumerate(kind.facts):
        cells = [one_line(part.facts.get(name, "-"), 40) for part in parts]
        columns.insert(2 + at, Column(heading=one_line(name, 40), cells=cells, drop_priority=40 + at if at else 1))
    return columns


def as_json(path: Path) -> str:
    """Returns the last reading as JSON, and how many there are."""
    readings = list(read(path / PARTS))
    last = jsonable(readings[-1]) if readings else None
    return json.dumps({"readings": len(readings), "last": last}, indent=1)


def summary(path: Path) -> list[Text]:
    """Returns a line that says which parts a run has, and one for each that is not up; none where nothing is recorded
    of them."""
    last = newest(path / PARTS)
    if last is None:
        return []
    named = ", ".join(one_line(kind.title, 80) for kind in kinds(last)[:MAX_COLUMNS])
    lines = [Text(f"\nparts: {named}    what each does: sojourn show {shell_word(path)} --parts", "dim")]
    down = [part for part in last.parts if part.state in (PartState.SILENT, PartState.DOWN)]
    return lines + [
        Text(one_line(f"{part.name} is {part.state.value} {when(last)}: {why(part)}", 300), STYLES[part.state])
        for part in down[:10]
    ]
