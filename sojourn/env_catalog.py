"""The catalog of the worlds that are installed: what each one is, and what was measured of it, as tables for people."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sojourn.config import plugins
from sojourn.config.lookup import find, names
from sojourn.envs.about import About, about_of
from sojourn.envs.measured import Measured, Scored
from sojourn.envs.tools import Tools
from sojourn.errors import SojournError, WorldError

if TYPE_CHECKING:
    from rich.table import Table

MEASURED = "measured.json"  # a file of the top-level package of a world; benchmarks/worlds.py writes ours
CAPTION = "expert and random: mean rewards; *: forked by re-execution; details: sojourn envs NAME"
MIN_WIDTHS = {"seats": 90, "sees": 110, "licence": 110}  # of a terminal, for columns that are not always shown
UNITS = ((1_000_000, "M"), (1_000, "k"))
FORKS = {"own": "its own fork", "re-execution": "playing again"}


@dataclass(frozen=True)
class World:
    """One entry of the catalog. `measured` is None for a world that was never measured, `about` for one that has no
    description of itself."""

    name: str
    summary: str  # the first sentence of its docstring
    about: About | None
    measured: Measured | None
    where: str = ""  # the date, the machine and the fields of the measurement
    text: str = ""  # its whole docstring


@cache
def measurements(package: str) -> Mapping[str, Any]:
    """Returns the measurements of the worlds of a top-level package, by the names of the worlds."""
    for folder in getattr(sys.modules.get(package), "__path__", ()):
        if (file := Path(folder) / MEASURED).is_file():
            return json.loads(file.read_text())
    return {}


def worlds() -> list[World]:
    """Returns the entries of all registered worlds; one that cannot be imported has the error as its summary."""
    return [_entry(name) for name in names("env")]


def _entry(name: str) -> World:
    try:
        return describe(name, find("env", name))
    except SojournError as error:
        return World(name, str(error), None, None)


def describe(name: str, family: Any) -> World:
    """Returns the entry of a world, or of the class of one."""
    cls = _described_class(family)
    summary = " ".join((cls.__doc__ or "").split()).partition(". ")[0].removesuffix(".") + "."
    packages = [plugins.top_level(kind.__module__) for kind in (cls, type(family))]
    record = next((known[name] for known in map(measurements, packages) if name in known), None)
    measured = Measured.from_json(record["measured"]) if record else None
    where = record["where"] + f", with {json.dumps(record['fields'])}" * bool(record["fields"]) if record else ""
    return World(name, summary, about_of(cls), measured, where, inspect.cleandoc(cls.__doc__ or ""))


def _described_class(family: Any) -> type:
    """Returns the class that describes a world: the plain class, where the world was made of one."""
    if isinstance(family, Tools):
        return family.plain
    return family if isinstance(family, type) else type(family)


def measured_now(entry: World, family: Any) -> World:
    """Returns the entry with what a measurement on this machine gives; this plays the world."""
    from sojourn.checks.env.measure import measure  # imports all that checks a world
    from sojourn.checks.promise import BrokenError

    try:
        return replace(entry, measured=asyncio.run(measure(family)), where="now, on this machine")
    except BrokenError as error:
        raise WorldError(f"the world '{entry.name}' cannot be measured: {error}") from error


def row(entry: World) -> dict[str, str]:
    """Returns the facts about a world by heading, each in a few characters."""
    about, measured = entry.about, entry.measured
    return {
        "name": entry.name,
        "seats": about.seats if about else "",
        "sees": ", ".join(about.modalities) if about else "",
        "tasks": f"{count(measured.train)} / {count(measured.test)}" if measured else "",
        "fork": f"{number(measured.fork_ms)} ms" + "*" * (measured.fork != "own") if measured else "",
        "acts/s": number(measured.actions_per_s) if measured else "",
        "expert": f"{measured.expert.reward:.2f}" if measured and measured.expert else "",
        "random": f"{measured.chance.reward:.2f}" if measured else "",
        "extra": about.extra if about else "",
        "licence": re.split("[;(]", about.licence)[0].strip() if about else "",
    }


def table(entries: list[World], width: int = 80) -> Table:
    """Returns a table with one line per world, without what the terminal is too narrow for."""
    from rich import box
    from rich.table import Table

    rows = [row(entry) for entry in entries]
    headings = [heading for heading in rows[0] if width >= MIN_WIDTHS.get(heading, 0)]
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, caption=CAPTION)
    table.caption_justify = "left"
    tasks = " / " if width >= MIN_WIDTHS["seats"] else "/"
    right = {"tasks", "fork", "acts/s", "expert", "random"}
    for heading in headings:
        justify = "right" if heading in right else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=heading == "name")
    for cells in rows:
        table.add_row(*(cells[heading].replace(" / ", tasks) for heading in headings))
    return table


def details(entry: World, family: Any) -> list[tuple[str, str]]:
    """Returns everything that is known about one world, as labels and values."""
    about, measured = entry.about, entry.measured
    lines = [("what it is", entry.summary)]
    if about:
        distribution = plugins.distribution_of(_described_class(family).__module__) if about.extra else ""
        install = f"pip install '{distribution}[{about.extra}]'" if distribution else about.extra
        programs = ", ".join(f"{program} (Debian: {package})" for program, package in about.programs.items())
        lines += [
            ("source", about.source),
            ("licence", about.licence),
            ("needs", "; ".join(part for part in (install, programs) if part) or "nothing beside sojourn"),
            ("seats", about.seats),
            ("sees", ", ".join(about.modalities)),
        ]
    if measured:
        lines += [
            ("tasks", f"{measured.train:,} to train, {measured.test:,} to test"),
            ("expert", _score(measured.expert) or "none"),
            ("random policy", _score(measured.chance)),
            ("speed", f"{number(measured.actions_per_s)} actions/s, {number(measured.start_ms)} ms to start"),
            ("fork", f"{number(measured.fork_ms)} ms half way through a play, by {FORKS[measured.fork]}"),
            ("measured", f"{measured.plays} test tasks, {entry.where}"),
        ]
    else:
        lines.append(("measured", f"not yet: sojourn envs {entry.name} --measure"))
    if isinstance(family, Tools):
        lines.append(("tools", "\n".join(tools_of(family))))
    return [*lines, ("fields", ", ".join(f.name for f in fields(family) if f.init) if is_dataclass(family) else "none")]


def tools_of(family: Tools) -> list[str]:
    """Returns the tools of a plain class as they are declared: every public method that has no other meaning."""
    return [f"{one.signature}  {one.tool.description}".rstrip() for one in family.interface.methods.values()]


def sheet(entry: World, family: Any) -> Table:
    """Returns the details of a world as a table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in details(entry, family):
        grid.add_row(label, Text(value))
    return grid


def _score(scored: Scored | None) -> str:
    """Returns the mean reward and the success rate; empty where there is none."""
    return "" if scored is None else f"{scored.reward:.2f} ({100 * scored.success:.0f}%)"


def count(value: int) -> str:
    """Returns a number of tasks in a few characters, such as 12.5k."""
    for unit, letter in UNITS:
        if value >= unit:
            return f"{value / unit:.10g}{letter}" if value % unit == 0 else f"{value / unit:.3g}{letter}"
    return str(value)


def number(value: float) -> str:
    """Returns a number in a few characters: whole from 10 on, with two digits below."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.0f}"
