"""Several runs beside each other: where their configs differ, and their curves in one chart for each metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup
from starlette.requests import Request

from sojourn.errors import RecordError
from sojourn.record.metrics import Line
from sojourn.record.run_status import RunStatus
from sojourn.terminal.runs import Difference, differences
from sojourn.view.charts import Curve, across, chart, smooth
from sojourn.view.page import Page, render, shelf
from sojourn.view.pages.run import smoothing, stage_starts

FIRST = ("success", "reward", "entropy", "kl", "lag_mean", "clip_fraction", "zero_signal", "episodes_per_s")
SHARES = frozenset({"success", "zero_signal", "malformed", "cut_off", "sampler_reuse"})
MOST = 16  # runs


def index(request: Request) -> Page:
    shown = shelf(request)
    keys = list(dict.fromkeys(request.query_params.getlist("run")))[:MOST]
    window, seeds = smoothing(request), request.query_params.get("seeds") == "1"
    runs = {key: shown.standing(shown.path(key)) for key in keys}
    lines = {key: shown.lines(run.path) for key, run in runs.items()}
    names = sorted({name for found in lines.values() for line in found for name in line.values})
    chosen = [name for name in request.query_params.getlist("metric") if name in names]
    metrics = chosen or [name for name in FIRST if name in names]
    drawn = [overlay(name, runs, lines, window, seeds) for name in metrics]
    return render(
        request, "diff.html", keys=keys, runs=runs, charts=drawn, names=names, chosen=metrics, window=window,
        seeds=seeds, differences=_differences(runs), others=[key for key in shown.paths() if key not in keys],
        missing=[told for run in runs.values() for told in (*run.missing, *shown.lost(run.path))],
    )  # fmt: skip


def overlay(
    name: str, runs: dict[str, RunStatus], lines: Mapping[str, Sequence[Line]], window: float, seeds: bool
) -> Markup:
    """One metric of all runs; with `seeds`, runs of the same recipe are one curve with a band."""
    curves = {key: curve(name, key, lines[key], window) for key in runs}
    if not seeds:
        return chart(name, list(curves.values()), share=name in SHARES)
    named = {key: run.recipe or key for key, run in runs.items()}
    grouped = {recipe: [curves[key] for key in runs if named[key] == recipe] for recipe in named.values()}
    return chart(
        name,
        [across(of, f"{recipe}, {len(of)} seeds") if len(of) > 1 else of[0] for recipe, of in grouped.items()],
        share=name in SHARES,
    )


def curve(name: str, key: str, lines: Sequence[Line], window: float) -> Curve:
    starts = stage_starts(lines)
    x = np.array([starts[line.stage] + line.step for line in lines], dtype=np.float64)
    return Curve(key, x, smooth(np.array([line.values.get(name, math.nan) for line in lines]), window))


def _differences(runs: dict[str, RunStatus]) -> list[tuple[str, str, list[Difference], str]]:
    """Each run against the first; of a damaged one, what keeps it from being compared."""
    (first, base), *rest = list(runs.items()) or [("", None)]
    found: list[tuple[str, str, list[Difference], str]] = []
    for key, run in rest:
        try:
            found.append((first, key, list(differences(base.path, run.path)), ""))  # type: ignore[union-attr]
        except RecordError as error:
            found.append((first, key, [], str(error)))
    return found
