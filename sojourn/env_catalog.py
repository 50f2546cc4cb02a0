"""The worlds that are installed: what they say of themselves and what was measured of them, for people."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sojourn.checks.env.measure import Measured, Scored, measure
from sojourn.config import plugins
from sojourn.config.registry import find, names
from sojourn.envs.about import About
from sojourn.errors import SojournError

if TYPE_CHECKING:
    from rich.table import Table

MEASURED = "measured.json"  # in the top-level package of a world; ours are written by benchmarks/worlds.py
CAPTION = "expert and random: mean rewards; *: forked by re-execution; sojourn envs NAME tells more"
WIDE = 110  # columns
UNITS = ((1_000_000, "M"), (1_000, "k"))
FORKS = {"own": "its own fork", "re-execution": "playing again"}


@dataclass(frozen=True)
class World:
    """One line of the atlas. `measured` is None where it never was; `about` where it says nothing of itself."""

    name: str
    what: str
    about: About | None
    measured: Measured | None
    where: str = ""  # date and machine of the measurement, and with which fields


@cache
def measurements(package: str) -> Mapping[str, Any]:
    """Returns what was measured of the worlds of a top-level package, by their names."""
    for folder in getattr(sys.modules.get(package), "__path__", ()):
        if (file := Path(folder) / MEASURED).is_file():
            return json.loads(file.read_text())
    return {}


def worlds() -> list[World]:
    return [_listed(name) for name in names("env")]


def _listed(name: str) -> World:
    try:
        return describe(name, find("env", name))
    except SojournError as error:
        return World(name, str(error), None, None)


def describe(name: str, family: Any) -> World:
    """What is known of a world, or of the class of one."""
    cls = _class(family)
    what = " ".join((cls.__doc__ or "").split()).partition(". ")[0].removesuffix(".") + "."
    packages = [plugins.top_level(kind.__module__) for kind in (cls, type(family))]
    found = next((known[name] for known in map(measurements, packages) if name in known), None)
    measured = Measured.from_json(found["measured"]) if found else None
    where = found["where"] + f", with {json.dumps(found['fields'])}" * bool(found["fields"]) if found else ""
    return World(name, what, getattr(cls, "about", None), measured, where)


def _class(family: Any) -> type:
    """The class that says what a world is: the plain one, where it is a world of one."""
    plain = getattr(family, "plain", None)
    return plain if isinstance(plain, type) else family if isinstance(family, type) else type(family)


def measured_now(entry: World, family: Any) -> World:
    return replace(entry, measured=asyncio.run(measure(family)), where="now, on this machine")


def row(entry: World) -> dict[str, str]:
    """The facts of a world in a few characters each, by heading."""
    about, found = entry.about, entry.measured
    return {
        "name": entry.name,
        "seats": about.seats if about else "",
        "sees": ", ".join(about.modalities) if about else "",
        "tasks": f"{count(found.train)} / {count(found.test)}" if found else "",
        "fork": f"{number(found.fork_ms)} ms" + "*" * (found.fork != "own") if found else "",
        "acts/s": number(found.actions_per_s) if found else "",
        "expert": f"{found.expert.reward:.2f}" if found and found.expert else "",
        "random": f"{found.chance.reward:.2f}" if found else "",
        "extra": about.extra if about else "",
        "licence": re.split("[;(]", about.licence)[0].strip() if about else "",
    }


def table(entries: list[World], width: int = 80) -> Table:
    """One line a world; what it sees and its licence where there is room for them."""
    from rich import box
    from rich.table import Table

    rows = [row(entry) for entry in entries]
    headings = [heading for heading in rows[0] if width >= WIDE or heading not in ("sees", "licence")]
    shown = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, caption=CAPTION)
    shown.caption_justify = "left"
    right = {"tasks", "fork", "acts/s", "expert", "random"}
    for heading in headings:
        justify = "right" if heading in right else "left"
        shown.add_column(heading, justify=justify, overflow="fold", no_wrap=heading == "name")
    for cells in rows:
        shown.add_row(*(cells[heading] for heading in headings))
    return shown


def details(entry: World, family: Any) -> list[tuple[str, str]]:
    """Everything that is known of one world, as labels and values."""
    about, found = entry.about, entry.measured
    lines = [("what it is", entry.what)]
    if about:
        distribution = plugins.distribution_of(_class(family).__module__) if about.extra else ""
        install = f"pip install '{distribution}[{about.extra}]'" if distribution else about.extra
        programs = ", ".join(f"{program} (Debian: {package})" for program, package in about.programs.items())
        lines += [
            ("source", about.source),
            ("licence", about.licence),
            ("needs", "; ".join(part for part in (install, programs) if part) or "nothing beside sojourn"),
            ("seats", about.seats),
            ("sees", ", ".join(about.modalities)),
        ]
    if found:
        lines += [
            ("tasks", f"{found.train:,} to train, {found.test:,} to test"),
            ("expert", _score(found.expert) or "none"),
            ("random policy", _score(found.chance)),
            ("speed", f"{number(found.actions_per_s)} actions/s, {number(found.start_ms)} ms to start"),
            ("fork", f"{number(found.fork_ms)} ms half way through a play, by {FORKS[found.fork]}"),
            ("measured", f"{found.plays} test tasks, {entry.where}"),
        ]
    else:
        lines.append(("measured", f"not yet: sojourn envs {entry.name} --measure"))
    return [*lines, ("fields", ", ".join(f.name for f in fields(family) if f.init) if is_dataclass(family) else "none")]


def sheet(entry: World, family: Any) -> Table:
    """The details for the terminal."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in details(entry, family):
        grid.add_row(label, Text(value))
    return grid


def _score(found: Scored | None) -> str:
    """Reward, and the success rate where it says more."""
    return "" if found is None else f"{found.reward:.2f} ({100 * found.success:.0f}%)"


def count(value: int) -> str:
    for unit, letter in UNITS:
        if value >= unit:
            return f"{value / unit:.10g}{letter}" if value % unit == 0 else f"{value / unit:.3g}{letter}"
    return str(value)


def number(value: float) -> str:
    """Whole from 10 on, two digits below."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.0f}"
