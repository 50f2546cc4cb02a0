"""The page of a run: its evaluations, curves, success by tag and by task, failed episodes, and newest steps."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from starlette.requests import Request

from sojourn.live.reading import has_store
from sojourn.record.diagnosis import findings
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.metrics import Line
from sojourn.record.run_status import RunStatus
from sojourn.view.charts import Curve, chart, smooth
from sojourn.view.counts import (
    EVALUATION_PREFIX,
    RECENT_STEPS,
    StageSteps,
    TaskCounts,
    failures,
    missing_records,
    stages,
    success_by_tag,
    success_by_task,
)
from sojourn.view.page import Page, address, render, run_cache
from sojourn.view.pages.parts import present
from sojourn.view.pages.questions import read_asking

NEWEST_STEPS, STEPS_PER_PAGE = 12, 50  # that are listed below the main curves, and below all curves


class EvaluationLinks(NamedTuple):
    """The addresses of an evaluation's episodes, and of its changes since the first evaluation."""

    episodes: str
    changes: str


class ChartSpec(NamedTuple):
    """A chart of the metrics whose names match the patterns `names`; a `fraction` has an axis from 0 to 1."""

    title: str
    names: tuple[str, ...]
    fraction: bool = False


SECONDS = tuple(f"seconds_{activity}" for activity in ("env", "sample", "train", "publish", "other"))
CHARTS = (
    ChartSpec("success", ("success",), True),
    ChartSpec("success by environment", ("success_*",), True),
    ChartSpec("reward", ("reward",)),
    ChartSpec("entropy, nats per token", ("entropy",)),
    ChartSpec("KL divergence from the sampling policy, nats", ("kl", "kl_*", "drift")),
    ChartSpec("policy lag, weight versions", ("lag_mean", "lag_max")),
    ChartSpec("clip fraction", ("clip_fraction", "clip_fraction_*")),
    ChartSpec("fraction of groups with equal rewards (zero signal)", ("zero_signal",), True),
    ChartSpec("trained groups by origin", ("groups_of_*",)),
    ChartSpec("curriculum: expected success, tasks never played", ("predicted_success", "never_played"), True),
    ChartSpec("curriculum: entropy of the draw, nats", ("draw_entropy",)),
    ChartSpec("curriculum: share of the draws by world and tag", ("draw_share_*",), True),
    ChartSpec("curriculum: expected success by world and tag", ("predicted_success_*",), True),
    ChartSpec("curriculum: tasks made, refused, dropped", ("tasks_made", "tasks_refused", "tasks_dropped")),
    ChartSpec("curriculum: numbers in the data of the next tasks, edits", ("drawn_*",)),
    ChartSpec("fraction of actions malformed, cut off", ("malformed", "cut_off"), True),
    ChartSpec("loss", ("loss", "loss_*")),
    ChartSpec("gradient norm", ("grad_norm",)),
    ChartSpec("fraction of a step's time", SECONDS, True),
    ChartSpec("episodes per second", ("episodes_per_s",)),
    ChartSpec("engine: sequences per batch", ("sampler_batch",)),
    ChartSpec("engine: fraction of prompt tokens from the cache", ("sampler_reuse",), True),
    ChartSpec("engine: seconds in the queue", ("sampler_queued_s",)),
    ChartSpec("engine: cache pages evicted", ("sampler_evicted_pages",)),
)  # fmt: skip


def index(request: Request) -> Page:
    key = request.path_params["run"]
    cache = run_cache(request)
    path = cache.path(key)
    window = smoothing(request)
    lines = cache.lines(path)
    starts = stage_starts(lines)
    with cache.store(path) as store:
        played = stages(store)
        unreadable = missing_records(store, played, lines)
        failed, tags = failures(store), success_by_tag(store, lines[-1].stage, lines[-1].step) if lines else []
        tasks, diagnosis = _tasks(store, cache.status(path), played), findings(store, lines)
    show_all = request.query_params.get("all") == "1"
    skip = request.query_params.get("skip", "")
    skipped = int(skip) if show_all and skip.isdecimal() and len(skip) < 10 else 0
    listed = lines[::-1][skipped : skipped + (STEPS_PER_PAGE if show_all else NEWEST_STEPS)]
    return render(
        request, "run.html", run=key, status=cache.status(path), charts=charts(lines, starts, window, show_all),
        listed=listed, skipped=skipped, count=len(lines), failed=failed, tags=tags, tasks=tasks,
        diagnosis=diagnosis, window=window, show_all=show_all, parts_now=present(cache.readings(path)),
        has_live=has_store(path), asking=read_asking(path), recent_steps=RECENT_STEPS,
        links=_links(key, cache.status(path), played),
        problems=[
            *cache.status(path).missing, *cache.metrics_problems(path), *unreadable, *store.troubles,
            *filter(None, [cache.readings(path).problem]),
        ],
    )  # fmt: skip


def _tasks(store: EpisodeStore, run: RunStatus, played: Sequence[StageSteps]) -> TaskCounts | None:
    """Returns success by task in the last evaluation, or in the last steps of the stage if there is no evaluation."""
    last = {span.stage: span.last for span in played}
    evaluations = [EVALUATION_PREFIX + evaluation.name for evaluation in run.evaluations]
    stage = next((name for name in reversed(evaluations) if name in last), run.stage)
    counts = success_by_task(store, stage, last[stage]) if stage in last else None
    return counts if counts is not None and counts.played else None


def _links(key: str, run: RunStatus, played: Sequence[StageSteps]) -> dict[str, EvaluationLinks]:
    """Returns the links of every evaluation that has episodes, by its name."""
    first = run.evaluations[0].name if run.evaluations else None
    links: dict[str, EvaluationLinks] = {}
    for span in played:
        if span.stage.startswith(EVALUATION_PREFIX):
            name = span.stage.removeprefix(EVALUATION_PREFIX)
            episodes = address("runs", key, "steps", span.stage, span.last)
            links[name] = EvaluationLinks(episodes, address("runs", key, "changes", a=first, b=name))
    return links


def smoothing(request: Request) -> float:
    """Returns the requested standard deviation of the smoothing in steps, 0 if it is not a number from 0 to 1000."""
    try:
        steps = float(request.query_params.get("smooth", 0))
    except ValueError:
        return 0.0
    return steps if 0 <= steps <= 1000 else 0.0


def stage_starts(lines: Sequence[Line]) -> dict[str, int]:
    """Returns the step of the whole run at which each stage starts."""
    starts: dict[str, int] = {}
    lengths: dict[str, int] = {}
    for line in lines:
        if line.stage not in starts:
            starts[line.stage] = sum(lengths.values())
        lengths[line.stage] = max(lengths.get(line.stage, 0), line.step + 1)
    return starts


def charts(lines: Sequence[Line], starts: dict[str, int], window: float, show_all: bool) -> list[Markup]:
    """Draws all of `CHARTS` that have values; with `show_all`, also one chart for each other metric."""
    x = np.array([starts[line.stage] + line.step for line in lines], dtype=np.float64)
    names = list(dict.fromkeys(name for line in lines for name in line.values))
    marks = [(at, stage) for stage, at in starts.items()] if len(starts) > 1 else []
    drawn: list[Markup] = []
    used: set[str] = set()
    for spec in CHARTS:
        matching = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in spec.names)]
        used |= set(matching)
        curves = [Curve(_curve_name(name, spec), x, smooth(_values(lines, name, spec), window)) for name in matching]
        if curves:
            drawn.append(chart(spec.title, curves, fraction=spec.fraction, marks=marks))
    for name in sorted(set(names) - used) if show_all else ():
        values = np.array([line.values.get(name, math.nan) for line in lines])
        drawn.append(chart(name, [Curve(name, x, smooth(values, window))], marks=marks))
    return drawn


def _values(lines: Sequence[Line], name: str, spec: ChartSpec) -> np.ndarray:
    """Returns a metric by step, NaN if a step has none; times are divided by the time of the whole step."""
    values = np.array([line.values.get(name, math.nan) for line in lines])
    if spec.fraction and name.startswith("seconds_"):
        whole = np.array([line.values.get("seconds_step", math.nan) for line in lines])
        return values / np.where(whole > 0, whole, math.nan)
    return values


def _curve_name(name: str, spec: ChartSpec) -> str:
    """Returns the name of a metric without the prefix that all metrics of its chart share."""
    for pattern in spec.names:
        stem = pattern.removesuffix("*")
        if pattern.endswith("_*") and len(spec.names) == 1 and name.startswith(stem):
            return name.removeprefix(stem)
    return name.removeprefix("seconds_")
