"""The page that compares runs: one chart per metric with the curves of all, and the differences of their configs."""

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
from sojourn.view.charts import Curve, chart, mean_of_seeds, smooth
from sojourn.view.page import Page, render, run_cache
from sojourn.view.pages.run import smoothing, stage_starts

DEFAULT_METRICS = ("success", "reward", "entropy", "kl", "lag_mean", "clip_fraction", "zero_signal", "episodes_per_s")
FRACTIONS = frozenset({"success", "zero_signal", "malformed", "cut_off", "sampler_reuse"})
MAX_RUNS = 16


def index(request: Request) -> Page:
    cache = run_cache(request)
    asked = list(dict.fromkeys(request.query_params.getlist("run")))
    keys = asked[:MAX_RUNS]
    more = [f"the first {MAX_RUNS} of {len(asked)} runs are compared: select fewer"] * (len(asked) > MAX_RUNS)
    window, seeds = smoothing(request), request.query_params.get("seeds") == "1"
    runs = {key: cache.status(cache.path(key)) for key in keys}
    lines = {key: cache.lines(run.path) for key, run in runs.items()}
    names = sorted({name for of_run in lines.values() for line in of_run for name in line.values})
    chosen = [name for name in request.query_params.getlist("metric") if name in names]
    metrics = chosen or [name for name in DEFAULT_METRICS if name in names]
    drawn = [metric_chart(name, runs, lines, window, seeds) for name in metrics]
    return render(
        request, "diff.html", keys=keys, runs=runs, charts=drawn, names=names, chosen=metrics, window=window,
        seeds=seeds, differences=_differences(runs), others=[key for key in cache.paths() if key not in keys],
        problems=more + [one for run in runs.values() for one in (*run.missing, *cache.metrics_problems(run.path))],
    )  # fmt: skip


def metric_chart(
    name: str, runs: dict[str, RunStatus], lines: Mapping[str, Sequence[Line]], window: float, seeds: bool
) -> Markup:
    """Draws one metric of all runs. With `seeds`, the runs of a recipe become one mean curve with a band."""
    curves = {key: curve(name, key, lines[key], window) for key in runs}
    if not seeds:
        return chart(name, list(curves.values()), fraction=name in FRACTIONS)
    recipes = {key: run.recipe or key for key, run in runs.items()}
    groups = {recipe: [curves[key] for key in runs if recipes[key] == recipe] for recipe in recipes.values()}
    merged = [
        mean_of_seeds(group, f"{recipe}, {len(group)} seeds") if len(group) > 1 else group[0]
        for recipe, group in groups.items()
    ]
    return chart(name, merged, fraction=name in FRACTIONS)


def curve(name: str, key: str, lines: Sequence[Line], window: float) -> Curve:
    """Returns the smoothed curve of a metric over all stages of a run."""
    starts = stage_starts(lines)
    x = np.array([starts[line.stage] + line.step for line in lines], dtype=np.float64)
    return Curve(key, x, smooth(np.array([line.values.get(name, math.nan) for line in lines]), window))


def _differences(runs: dict[str, RunStatus]) -> list[tuple[str, str, list[Difference], str]]:
    """Compares each run with the first. Returns both keys, the differences, and why a damaged run cannot be
    compared."""
    (first, base), *rest = list(runs.items()) or [("", None)]
    compared: list[tuple[str, str, list[Difference], str]] = []
    for key, run in rest:
        try:
            compared.append((first, key, list(differences(base.path, run.path)), ""))  # type: ignore[union-attr]
        except RecordError as error:
            compared.append((first, key, [], str(error)))
    return compared
