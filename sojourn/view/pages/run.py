"""One run: success and reward, the numbers of training and of the engine, what fails, and the newest steps."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from starlette.requests import Request

from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.metrics import Line
from sojourn.record.run_status import RunStatus
from sojourn.view.charts import Curve, chart, smooth
from sojourn.view.counts import PREFIX, Span, Tasks, failures, of_tags, of_tasks, stages, unrecorded
from sojourn.view.page import Page, address, render, shelf

NEWEST, LISTED = 12, 50  # steps that are listed beside the first curves, and at once beside all


class Links(NamedTuple):
    """Of an evaluation: its episodes, and what changed since the first."""

    episodes: str
    changes: str


class Panel(NamedTuple):
    """One chart: the metrics whose names fit, and whether they are shares."""

    title: str
    names: tuple[str, ...]
    share: bool = False


SECONDS = tuple(f"seconds_{activity}" for activity in ("env", "sample", "train", "publish", "other"))
PANELS = (
    Panel("success", ("success",), True),
    Panel("success by world", ("success_*",), True),
    Panel("reward", ("reward",)),
    Panel("entropy, nats per token", ("entropy",)),
    Panel("KL to the sampler, nats", ("kl", "kl_*", "drift")),
    Panel("lag, versions", ("lag_mean", "lag_max")),
    Panel("clip fraction", ("clip_fraction", "clip_fraction_*")),
    Panel("groups without a signal", ("zero_signal",), True),
    Panel("malformed, cut off", ("malformed", "cut_off"), True),
    Panel("loss", ("loss", "loss_*")),
    Panel("gradient norm", ("grad_norm",)),
    Panel("share of a step's seconds", SECONDS, True),
    Panel("episodes per second", ("episodes_per_s",)),
    Panel("engine: rows in a batch", ("sampler_batch",)),
    Panel("engine: share of tokens found in the cache", ("sampler_reuse",), True),
    Panel("engine: seconds queued", ("sampler_queued_s",)),
    Panel("engine: pages evicted", ("sampler_evicted_pages",)),
)  # fmt: skip


def index(request: Request) -> Page:
    key = request.path_params["run"]
    shown = shelf(request)
    path = shown.path(key)
    window = smoothing(request)
    lines = shown.lines(path)
    starts = stage_starts(lines)
    with shown.store(path) as store:
        played = stages(store)
        gone = unrecorded(store, played, lines)
        failed, tags = failures(store), of_tags(store, lines[-1].stage, lines[-1].step) if lines else []
        tasks = _tasks(store, shown.standing(path), played)
    every = request.query_params.get("all") == "1"
    asked = request.query_params.get("skip", "")
    skipped = int(asked) if every and asked.isdecimal() and len(asked) < 10 else 0
    newest = lines[::-1][skipped : skipped + (LISTED if every else NEWEST)]
    return render(
        request, "run.html", run=key, standing=shown.standing(path), charts=charts(lines, starts, window, every),
        newest=newest, skipped=skipped, count=len(lines), failed=failed, tags=tags, tasks=tasks,
        window=window,
        every=every, linked=_links(key, shown.standing(path), played),
        missing=[*shown.standing(path).missing, *shown.lost(path), *gone, *store.troubles],
    )  # fmt: skip


def _tasks(store: EpisodeStore, run: RunStatus, played: Sequence[Span]) -> Tasks | None:
    """By task in the last evaluation, else in the last steps of the stage."""
    last = {span.stage: span.last for span in played}
    evaluated = [PREFIX + evaluation.name for evaluation in run.evaluations if PREFIX + evaluation.name in last]
    stage = evaluated[-1] if evaluated else run.stage
    found = of_tasks(store, stage, last[stage]) if stage in last else None
    return found if found is not None and found.played else None


def _links(key: str, run: RunStatus, played: Sequence[Span]) -> dict[str, Links]:
    """By evaluation, where its episodes are and what changed since the first."""
    held = {span.stage.removeprefix(PREFIX): span.last for span in played if span.stage.startswith(PREFIX)}
    return {
        name: Links(
            address("runs", key, "steps", PREFIX + name, step),
            address("runs", key, "panels", a=run.evaluations[0].name if run.evaluations else None, b=name),
        )
        for name, step in held.items()
    }


def smoothing(request: Request) -> float:
    """The asked deviation of the smoothing, in steps."""
    try:
        found = float(request.query_params.get("smooth", 0))
    except ValueError:
        return 0.0
    return found if 0 <= found <= 1000 else 0.0


def stage_starts(lines: Sequence[Line]) -> dict[str, int]:
    """At which step of the whole run each stage began."""
    starts: dict[str, int] = {}
    lengths: dict[str, int] = {}
    for line in lines:
        if line.stage not in starts:
            starts[line.stage] = sum(lengths.values())
        lengths[line.stage] = max(lengths.get(line.stage, 0), line.step + 1)
    return starts


def charts(lines: Sequence[Line], starts: dict[str, int], window: float, every: bool) -> list[Markup]:
    """The charts of all panels that have values; with `every`, one for each other metric too."""
    x = np.array([starts[line.stage] + line.step for line in lines], dtype=np.float64)
    names = list(dict.fromkeys(name for line in lines for name in line.values))
    marks = [(at, stage) for stage, at in starts.items()] if len(starts) > 1 else []
    drawn: list[Markup] = []
    used: set[str] = set()
    for panel in PANELS:
        found = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in panel.names)]
        used |= set(found)
        curves = [Curve(_short(name, panel), x, smooth(_values(lines, name, panel), window)) for name in found]
        if curves:
            drawn.append(chart(panel.title, curves, share=panel.share, marks=marks))
    for name in sorted(set(names) - used) if every else ():
        values = np.array([line.values.get(name, math.nan) for line in lines])
        drawn.append(chart(name, [Curve(name, x, smooth(values, window))], marks=marks))
    return drawn


def _values(lines: Sequence[Line], name: str, panel: Panel) -> np.ndarray:
    values = np.array([line.values.get(name, math.nan) for line in lines])
    if panel.share and name.startswith("seconds_"):
        whole = np.array([line.values.get("seconds_step", math.nan) for line in lines])
        return values / np.where(whole > 0, whole, math.nan)
    return values


def _short(name: str, panel: Panel) -> str:
    """Without the beginning that all names of the panel share."""
    for pattern in panel.names:
        stem = pattern.removesuffix("*")
        if pattern.endswith("_*") and len(panel.names) == 1 and name.startswith(stem):
            return name.removeprefix(stem)
    return name.removeprefix("seconds_")
