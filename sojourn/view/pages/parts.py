"""The page of what the parts of a run do: a table for each kind, and how busy they were."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from starlette.requests import Request

from sojourn.abilities import PartLoad, PartState
from sojourn.record.parts import Reading
from sojourn.terminal.parts import BUSY, Kind, cell, heading, history, kinds, when, why
from sojourn.view.charts import COLOURS, Curve, chart
from sojourn.view.page import Page, render, run_cache
from sojourn.view.run_cache import Readings

MAX_POINTS = 80  # of a small curve
GONE = (PartState.SILENT, PartState.DOWN)
CHARTED = (  # by the numbers of parts: the title of a chart, which has a curve for each part
    (BUSY, "busy, share of the time"),
    ("sampled_tokens_per_s", "sampled tokens per second"),
    ("plays_mean", "plays at once, mean"),
    ("last_pass_s", "seconds of the last pass"),
    ("memory_bytes", "memory, GB"),
    ("gpu_memory_bytes", "memory of the GPU, GB"),
    ("loop_lag_max_s", "longest delay of the event loop, seconds"),
)


class Row(NamedTuple):
    """A part, the texts of its table's columns, why it is not up, and how busy it was."""

    part: PartLoad
    facts: Sequence[str]
    numbers: Sequence[str]
    why: str
    busy: Sequence[float]


class PartTable(NamedTuple):
    """The parts of a kind: `headings` are those of their facts and their numbers."""

    kind: Kind
    headings: tuple[Sequence[str], Sequence[str]]
    rows: Sequence[Row]
    charts: Sequence[Markup]


class Present(NamedTuple):
    """Holds what the run's page says of its parts: of which kinds there are how many, and which of them are gone."""

    reading: Reading
    titles: Sequence[str]
    gone: Sequence[str]


def index(request: Request) -> Page:
    key = request.path_params["run"]
    cache = run_cache(request)
    path = cache.path(key)
    readings, problem = cache.readings(path)
    last = readings[-1] if readings else None
    busy = history(readings)
    return render(
        request, "run_parts.html", run=key, status=cache.status(path), last=last, count=len(readings),
        when=when(last) if last is not None else "", headings=heading,
        tables=[_table(kind, readings, busy) for kind in kinds(last)] if last is not None else [],
        problems=filter(None, [problem]),
    )  # fmt: skip


def present(found: Readings) -> Present | None:
    """Returns what the run's page says of its parts, None where nothing is recorded of them."""
    if not found.readings:
        return None
    last = found.readings[-1]
    gone = [f"{part.name} is {part.state.value} {when(last)}: {why(part)}" for part in last.parts if part.state in GONE]
    return Present(last, [kind.title for kind in kinds(last)], gone)


def _table(kind: Kind, readings: Sequence[Reading], busy: Mapping[str, Sequence[float]]) -> PartTable:
    rows = [
        Row(
            part,
            [part.facts.get(name, "-") for name in kind.facts],
            [cell(name, part.numbers.get(name)) for name in kind.numbers],
            why(part),
            _thinned(busy.get(part.name, ())),
        )
        for part in kind.parts
    ]
    headings = (kind.facts, [heading(name) for name in kind.numbers])
    return PartTable(kind, headings, rows, list(_charts(kind, readings)))


def _charts(kind: Kind, readings: Sequence[Reading]) -> list[Markup]:
    """Draws a curve for each of a few parts; of many, the least, the mean and the greatest number of them."""
    x = np.arange(len(readings), dtype=np.float64)
    first = {reading.stage: at for at, reading in reversed(list(enumerate(readings)))}
    marks = [(at, stage) for stage, at in first.items() if stage][::-1] if len(first) > 1 else []
    drawn: list[Markup] = []
    for name, title in CHARTED if len(readings) > 1 else ():
        if name not in kind.numbers:
            continue
        known = history(readings, name)
        unit = 1e9 if name.endswith("_bytes") else 1.0
        rows = np.array([known[part.name] for part in kind.parts], dtype=np.float64) / unit
        if not np.isfinite(rows).any():
            continue
        if len(rows) <= COLOURS:
            curves = [Curve(part.name, x, row) for part, row in zip(kind.parts, rows, strict=True)]
        else:
            curves = [_of_many(x, rows)]
        drawn.append(chart(title, curves, fraction=name.endswith("_share"), marks=marks, x="reading"))
    return drawn


def _of_many(x: np.ndarray, rows: np.ndarray) -> Curve:
    """Returns the mean of many parts, with their range as a band."""
    known = np.isfinite(rows)
    count = known.sum(axis=0)
    mean = np.where(count > 0, np.where(known, rows, 0.0).sum(axis=0) / np.maximum(count, 1), math.nan)
    low = np.where(count > 0, np.where(known, rows, math.inf).min(axis=0), math.nan)
    high = np.where(count > 0, np.where(known, rows, -math.inf).max(axis=0), math.nan)
    return Curve(f"mean of {len(rows)}", x, mean, low, high)


def _thinned(values: Sequence[float]) -> Sequence[float]:
    """Returns at most `MAX_POINTS` values, among them the last."""
    stride = -(-len(values) // MAX_POINTS) or 1
    return values[::-1][::stride][::-1]
