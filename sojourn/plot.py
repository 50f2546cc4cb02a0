"""Draws the learning curve of a run, or of several seeds of a recipe, to a PNG.

The interactive charts of the viewer are SVG (`sojourn.view.charts`), since matplotlib takes 25 times as long for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn import intervals
from sojourn.config.toml import leaves
from sojourn.errors import MissingExtraError, RecordError
from sojourn.intervals import Estimate
from sojourn.record import metrics
from sojourn.record.atomic import require_place, write_file
from sojourn.record.run import RunFolder
from sojourn.record.summary import Summary

TRAINING, EVALUATION = "#2b6cb0", "#c05621"
CHARACTER = 0.009  # the width of a character of a stage's name, as a fraction of the panel's
STEP_METRICS = {"loss", "version"}  # of which every step of a stage has one; a stage that does not train has no loss
KL = {"drift": "KL from the\nstage's start", "kl": "KL (nats)"}  # the first of these that was recorded is drawn
MAX_STREAMS = 4  # that learn beside the policy, each with a panel of its own
MAX_MEASURES = 4  # of the policy as a whole, each with a panel of its own


class Series(NamedTuple):
    x: NDArray[np.float64]
    y: NDArray[np.float64]


class Measured(NamedTuple):
    """The numbers, by name, that worlds measured of the policy as a whole after some steps of a stage."""

    stage: str
    step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Curve:
    """The metrics of one run, whose stages follow each other on the x axis."""

    name: str
    lines: tuple[metrics.Line, ...]
    evaluations: tuple[tuple[str, int, Estimate], ...]  # stage, steps done in it, success
    measures: tuple[Measured, ...] = ()

    def series(self, name: str, starts: Mapping[str, int]) -> Series:
        points = [
            (starts[x.stage] + x.step, x.values[name]) for x in self.lines if x.stage in starts and name in x.values
        ]
        points = [(x, y) for x, y in points if np.isfinite(y)]
        x, y = np.array(points, dtype=np.float64).reshape(-1, 2).T
        return Series(x, y)


def curve(run_folders: Sequence[Path], out: Path) -> None:
    """Draws success over training, and evaluations with their 95% intervals, to a PNG.

    Panels below show entropy, KL, the error of a critic and of streams that learn, on data that they have not learnt
    from yet, and what worlds measure of the policy as a whole. Several folders are seeds of one recipe: a line is their
    mean, in a band from the lowest to the highest seed, and evaluations have a t interval over seeds. A stage is drawn
    if it has a loss; an evaluation is at the start of its stage plus the steps done in it. Raises RecordError if `out`
    is no PNG or cannot be written; then the file is unchanged.
    """
    new_figure = figure_class(out)
    _require_seeds([RunFolder.read(Path(folder)) for folder in run_folders])
    curves = read_curves(run_folders)
    starts, end = stage_starts(curves)
    lower = _lower_names({name for one in curves for line in one.lines for name in line.values})
    measures = sorted({name for one in curves for measured in one.measures for name in measured.values})[:MAX_MEASURES]
    below = len(lower) + len(measures)
    figure = new_figure(figsize=(8, 4 + below), dpi=120, layout="constrained")
    panels = figure.subplots(1 + below, 1, sharex=True, height_ratios=[3.2, *[1] * below])
    _success(panels[0], curves, starts)
    for panel, (name, label) in zip(panels[1:], lower.items(), strict=False):
        _lower(panel, curves, starts, name, label)
    for panel, name in zip(panels[1 + len(lower) :], measures, strict=True):
        _measure(panel, curves, starts, name)
    for panel in panels:
        frame(panel, starts)
    for stage, start in _with_room(starts, end).items():
        panels[0].annotate(stage, (start, 1.01), xycoords=("data", "axes fraction"), fontsize=8, color="0.35")
    names = curves[0].name if len(curves) == 1 else f"{curves[0].name} and {len(curves) - 1} more"
    panels[-1].set_xlabel(f"step ({names})")
    panels[-1].set_xlim(-0.02 * end - 0.5, 1.02 * end + 0.5)
    write_file(out, lambda temporary: figure.savefig(temporary, format="png"))


def _with_room(starts: Mapping[str, int], end: int) -> dict[str, int]:
    """Returns the stages whose names can be written at their starts: not those that would lie over the one before."""
    shown: dict[str, int] = {}
    free = -1.0
    for stage, start in starts.items():
        if start >= free:
            shown[stage] = start
            free = start + CHARACTER * end * (len(stage) + 1)
    return shown


def figure_class(out: Path) -> Any:
    """Returns matplotlib's class of figures. Raises where it is missing, and where `out` is no PNG, or has no folder in
    which it can be written."""
    if out.suffix != ".png":
        raise RecordError(f"the curve cannot be drawn to '{out}': curves are PNGs, name a file such as curve.png")
    require_place(out)
    try:
        from matplotlib.figure import Figure  # a Figure of its own never opens a window: it is drawn with Agg
    except ImportError as error:
        raise MissingExtraError(
            "a curve needs matplotlib, which is not installed: pip install sojourn[torch]"
        ) from error
    return Figure


def read_curves(run_folders: Sequence[Path]) -> list[Curve]:
    """Returns the curves of runs. Raises RecordError where none of them has recorded anything yet."""
    curves = [_read(Path(folder)) for folder in run_folders]
    if not any(c.lines or c.evaluations for c in curves):
        raise RecordError(f"nothing to draw in {', '.join(map(str, run_folders))}: no step has been recorded yet")
    return curves


def _lower_names(seen: set[str]) -> dict[str, str]:
    """Returns the metrics that are drawn below success, with their labels."""
    kl = next((name for name in KL if name in seen), "kl")
    names = {"entropy": "entropy (nats)", kl: KL[kl]}
    if "explained_variance" in seen:
        names["explained_variance"] = "critic: variance\nexplained"
    learnt = sorted(name for name in seen if name.endswith("_error") and name != "value_error")
    return {
        **names,
        **{name: f"{name.removesuffix('_error').replace('_', ' ')}:\nerror" for name in learnt[:MAX_STREAMS]},
    }


def _require_seeds(runs: Sequence[RunFolder]) -> None:
    """Raises RecordError unless the runs differ in their seeds and in nothing else that matters."""
    ours = compared(runs[0])
    for run in runs[1:]:
        theirs = compared(run)
        if unlike := [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]:
            raise RecordError(
                f"{runs[0].path} and {run.path} differ in {unlike[0]}: give runs that differ only in their seeds"
            )
    seeds = [run.config.get("seed") for run in runs]
    if twice := [run.path for n, run in enumerate(runs) if seeds[n] in seeds[:n]]:
        raise RecordError(f"{twice[0]} has a seed that another run has: give each run its own, such as seed=1")


def compared(run: RunFolder) -> dict[str, Any]:
    """Returns the values of a run's config in which it must be like another run of the same recipe, by their keys."""
    return dict(leaves({k: v for k, v in run.config.items() if k not in ("name", "seed", "record", "backend")}, ""))


def smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns a centred moving mean over a tenth of the points (at least 5), narrower at the edges."""
    half = max(2, len(values) // 20)
    total = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    reach = np.minimum(half, np.minimum(at, len(values) - 1 - at))
    return (total[at + reach + 1] - total[at - reach]) / (2 * reach + 1)


def _read(folder: Path) -> Curve:
    run = RunFolder.read(folder)
    evaluations, measures = [], []
    for evaluation in run.evaluations():
        if "same_as" in evaluation:
            continue  # it was measured once, before
        summary, at = Summary.from_json(evaluation["summary"]), (str(evaluation["stage"]), int(evaluation["step"]))
        evaluations.append((*at, summary.overall.success))
        measures.append(Measured(*at, summary.measures))
    lines = tuple(metrics.read(folder / "metrics.jsonl"))
    return Curve(folder.resolve().name, lines, tuple(evaluations), tuple(measures))


def stage_starts(curves: Sequence[Curve]) -> tuple[dict[str, int], int]:
    """Returns where each stage starts on the x axis, and where the last ends; of several seeds the longest
    counts."""
    lengths: dict[str, int] = defaultdict(int)
    for one in curves:
        for line in one.lines:
            if not line.values.keys().isdisjoint(STEP_METRICS):
                lengths[line.stage] = max(lengths[line.stage], line.step + 1)
        for stage, step, _ in one.evaluations:
            if stage in lengths:
                lengths[stage] = max(lengths[stage], step)
    starts, at = {}, 0
    for stage, length in lengths.items():
        starts[stage] = at
        at += length
    return starts, at


def _success(panel: Any, curves: Sequence[Curve], starts: Mapping[str, int]) -> None:
    for one in curves:
        series = one.series("success", starts)
        if len(curves) == 1:
            panel.plot(*series, ".", color=TRAINING, alpha=0.35, markersize=5, label="training batch")
    draw_lines(panel, [one.series("success", starts) for one in curves], starts, "smoothed")
    _evaluations(panel, curves, starts)
    scale_success(panel)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(loc="best", fontsize=8, frameon=False)


def scale_success(panel: Any) -> None:
    """Scales a panel from 0 to 100% of success."""
    panel.set_ylim(-0.03, 1.03)
    panel.set_yticks(np.linspace(0, 1, 6), [f"{p}%" for p in range(0, 101, 20)])
    panel.set_ylabel("success rate")


def _evaluations(panel: Any, curves: Sequence[Curve], starts: Mapping[str, int]) -> None:
    at: dict[int, list[Estimate]] = defaultdict(list)
    for one in curves:
        for stage, step, success in one.evaluations:
            if success.n:
                at[starts.get(stage, 0) + step].append(success)
    if not at:
        return
    several = len(curves) > 1
    for x, estimates in at.items():
        if several:
            panel.plot(
                [x] * len(estimates), [e.mean for e in estimates], "_", color=EVALUATION, alpha=0.6, markersize=8
            )
    x = sorted(at)
    drawn = [intervals.mean([e.mean for e in at[k]]) if several else at[k][-1] for k in x]
    low = [e.mean - max(0.0, e.low) for e in drawn]
    high = [min(1.0, e.high) - e.mean for e in drawn]
    label = f"evaluation, mean of {len(curves)} seeds (95%)" if several else "evaluation (95%)"
    y = [e.mean for e in drawn]
    panel.errorbar(x, y, yerr=[low, high], fmt="D-", color=EVALUATION, markersize=5, capsize=3, lw=1, label=label)


def _measure(panel: Any, curves: Sequence[Curve], starts: Mapping[str, int], name: str) -> None:
    """Draws what a world measured at each evaluation: of one run, or of several seeds and their mean."""
    at: dict[int, list[float]] = defaultdict(list)
    for one in curves:
        for stage, step, values in one.measures:
            if name in values:
                at[starts.get(stage, 0) + step].append(values[name])
    for x, values in at.items() if len(curves) > 1 else ():
        panel.plot([x] * len(values), values, "_", color=EVALUATION, alpha=0.6, markersize=8)
    x = sorted(at)
    panel.plot(x, [float(np.mean(at[k])) for k in x], "D-", color=EVALUATION, markersize=4, lw=1)
    panel.set_ylabel(name.replace("_", " "), fontsize=8)
    panel.tick_params(labelsize=8)


def _lower(panel: Any, curves: Sequence[Curve], starts: Mapping[str, int], name: str, label: str) -> None:
    all_series = [one.series(name, starts) for one in curves]
    draw_lines(panel, all_series, starts)
    panel.set_ylabel(label, fontsize=8)
    panel.tick_params(labelsize=8)
    if not any(len(series.x) for series in all_series):
        panel.text(
            0.5, 0.5, "not recorded", transform=panel.transAxes, ha="center", va="center", color="0.6", fontsize=8
        )
        panel.set_yticks([])


def draw_lines(
    panel: Any,
    all_series: Sequence[Series],
    starts: Mapping[str, int],
    label: str | None = None,
    colour: str = TRAINING,
) -> None:
    """Draws a smoothed line per stage: of one run, or the mean of several, in a band from the lowest to the highest."""
    at: dict[float, list[float]] = defaultdict(list)
    for series in all_series:
        for part in _by_stage(series, starts):
            for x, value in zip(part.x, smooth(part.y), strict=True):
                at[float(x)].append(float(value))
    xs = np.array(sorted(at))
    mean, low, high = (
        _by_stage(Series(xs, np.array([of(at[x]) for x in xs], dtype=np.float64)), starts) for of in (np.mean, min, max)
    )
    for number, (part, lowest, highest) in enumerate(zip(mean, low, high, strict=True)):
        text = f"mean of {len(all_series)} seeds, {label}" if len(all_series) > 1 else label
        panel.plot(part.x, part.y, color=colour, lw=1.8, label=text if label and not number else None)
        if len(all_series) > 1:
            panel.fill_between(part.x, lowest.y, highest.y, color=colour, alpha=0.2, lw=0)


def _by_stage(series: Series, starts: Mapping[str, int]) -> list[Series]:
    edges = [*starts.values(), np.inf]
    spans = [(series.x >= low) & (series.x < high) for low, high in pairwise(edges)]
    return [Series(series.x[span], series.y[span]) for span in spans if span.any()]


def frame(panel: Any, starts: Mapping[str, int]) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="0.92")
    panel.set_axisbelow(True)
    for start in starts.values():
        panel.axvline(start - 0.5, color="0.75", lw=0.8, ls="--")
