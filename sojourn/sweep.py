"""Plans the runs of a sweep (a recipe, values of some keys, seeds), and puts their results into a table and a picture.

Each run is an ordinary run folder of the sweep's folder, named after its values and its seed.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from sojourn import intervals
from sojourn.errors import ConfigError, MissingExtraError
from sojourn.intervals import Estimate
from sojourn.record.atomic import write_file
from sojourn.record.run import RunFolder
from sojourn.record.stopped import stopped_stages
from sojourn.record.summary import Summary

MAX_RUNS = 1000
UNNAMED = "base"  # the variant of a sweep over seeds alone


class PlannedRun(NamedTuple):
    """A run of a sweep: the values that make its variant, its seed, and the overrides of the recipe that give both."""

    variant: str
    seed: int
    overrides: tuple[str, ...]
    same_as: str = ""  # the name of an earlier run with the same config, which is not trained again

    @property
    def name(self) -> str:
        return f"{self.variant}.seed={self.seed}"

    @property
    def folder(self) -> str:
        """Returns the name of the run's folder."""
        return self.same_as or self.name


class Point(NamedTuple):
    """The success of a variant at one evaluation: the mean over its seeds with a 95% t interval, which is at least as
    wide as that of all their plays together; where only one seed has come so far, that evaluation's own interval.
    `by_seed` has the success of each seed, and `ended` that of those whose run is finished, where it was their last."""

    steps: int
    success: Estimate
    by_seed: Mapping[int, Estimate]
    ended: Mapping[int, Estimate] = {}


def plan(vary: Sequence[str], seeds: Sequence[int], overrides: Sequence[str]) -> list[PlannedRun]:
    """Returns the runs for every combination of the values in `vary` (such as "stages.rl.optim.lr=[1e-5, 3e-5]") and
    every seed. The seeds of a variant follow each other."""
    if of_seeds := [text for text in (*vary, *overrides) if text.partition("=")[0].strip() == "seed"]:
        raise ConfigError(f"{of_seeds[0]}: in a sweep, --seeds names the seeds, such as --seeds 1,2")
    axes = [_axis(text) for text in vary]
    runs = [
        PlannedRun(_variant(choice), seed, (*overrides, *(f"{k}={_toml(v)}" for k, v in choice), f"seed={seed}"))
        for choice in itertools.product(*([(key, value) for value in values] for key, values in axes))
        for seed in seeds
    ]
    if len({run.name for run in runs}) < len(runs) or not 0 < len(runs) <= MAX_RUNS:
        raise ConfigError(
            f"a sweep of {len(runs)} runs, {len({run.name for run in runs})} of them different: expected 1 to "
            f"{MAX_RUNS}, each with other values or another seed"
        )
    return runs


def recognise(runs: Sequence[PlannedRun], configs: Sequence[Mapping[str, Any]], folder: Path) -> list[PlannedRun]:
    """Returns the runs, of which those say so that are the same as an earlier one, of the plan or of the sweep's
    folder: where a value is the recipe's own, say. `configs` are the complete configs of the runs."""
    own = {run.name for run in runs}
    found = [path.parent for path in sorted(folder.glob("*/config.toml")) if path.parent.name not in own]
    known: list[tuple[str, Mapping[str, Any]]] = [(path.name, RunFolder.read(path).config) for path in found]
    recognised: list[PlannedRun] = []
    for run, config in zip(runs, configs, strict=True):
        begun = (folder / run.name / "config.toml").is_file()
        same = next((name for name, other in known if other == config), "")
        recognised.append(run._replace(same_as="" if begun else same))
        known.append((recognised[-1].folder, config))
    return recognised


def _axis(text: str) -> tuple[str, list[Any]]:
    key, _, raw = text.partition("=")
    try:
        values = tomllib.loads(f"v = {raw}")["v"]
    except tomllib.TOMLDecodeError:
        values = None
    simple = isinstance(values, list) and values and all(isinstance(v, bool | int | float | str) for v in values)
    if not key.strip() or not isinstance(values, list) or not simple:
        raise ConfigError(
            f"--vary {text}: expected a key and a list of numbers or texts, such as 'stages.rl.optim.lr=[1e-5, 3e-5]'"
        )
    return key.strip(), values


def _toml(value: Any) -> str:
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n")


def _variant(choice: Sequence[tuple[str, Any]]) -> str:
    """Returns a name that can be a folder's: the last part of each key with its value."""
    parts = [f"{key.rpartition('.')[2]}={value}" for key, value in choice]
    return re.sub(r"[^A-Za-z0-9._=,+-]+", "-", ",".join(parts)) or UNNAMED


def finished(folder: Path) -> bool:
    """Returns whether a run folder has the evaluations of all stages of its config, after their last steps or those at
    which they were stopped early."""
    run = RunFolder.read(folder)
    stages = {str(stage.get("name")): int(stage.get("steps", 0)) for stage in run.config.get("stages", [])}
    stages |= {name: stopped.step for name, stopped in stopped_stages(run).items()}
    return stages.items() <= {str(e["name"]): int(e["step"]) for e in run.evaluations()}.items()


def results(folder: Path, runs: Sequence[PlannedRun]) -> Mapping[str, list[Point]]:
    """Returns the evaluations of each variant, oldest first, over the seeds that have come so far."""
    found: dict[str, dict[int, dict[int, Estimate]]] = {run.variant: defaultdict(dict) for run in runs}
    ended: dict[str, dict[int, dict[int, Estimate]]] = {run.variant: defaultdict(dict) for run in runs}
    for planned in runs:
        path = folder / planned.folder
        if not (path / "config.toml").is_file():
            continue
        run = RunFolder.read(path)
        starts, evaluations = run.stage_starts, run.evaluations()
        last = evaluations[-1]["name"] if evaluations and finished(path) else None
        for e in evaluations:
            success = Summary.from_json(e["summary"]).overall.success
            steps = starts.get(str(e["stage"]), 0) + int(e["step"])
            found[planned.variant][steps][planned.seed] = success
            if e["name"] == last:
                ended[planned.variant][steps][planned.seed] = success
    return {
        name: [_point(steps, at[steps])._replace(ended=ended[name].get(steps, {})) for steps in sorted(at)]
        for name, at in found.items()
    }


def end(points: Sequence[Point]) -> Point:
    """Returns the last evaluations of all seeds whose runs are finished, which may have been stopped after different
    steps; the newest evaluation where none is."""
    last = {seed: one for point in points for seed, one in point.ended.items()}
    return _point(max(p.steps for p in points if p.ended), last) if last else points[-1]


def _point(steps: int, estimates: Mapping[int, Estimate]) -> Point:
    by_seed = dict(sorted(estimates.items()))
    several, plays = intervals.mean([one.mean for one in by_seed.values()]), _of_all_plays(by_seed.values())
    success = several._replace(low=max(0.0, min(several.low, plays.low)), high=min(1.0, max(several.high, plays.high)))
    return Point(steps, success if len(by_seed) > 1 else next(iter(estimates.values())), by_seed)


def _of_all_plays(estimates: Collection[Estimate]) -> Estimate:
    """Returns the mean success of several evaluations with the interval of so many independent plays.

    Seeds that agree by chance, as those of small panels do, say nothing of how far other seeds would be: their t
    interval is narrow, or has no width. But the plays of each are a sample, and whatever seeds differ by adds to the
    variance that it has, p (1 - p) / n. So no interval over seeds is taken to be narrower than that of their plays.
    """
    return intervals.wilson(sum(one.mean * one.n for one in estimates), sum(one.n for one in estimates))


def draw(results: Mapping[str, Sequence[Point]], out: Path, title: str, stages: Mapping[str, int]) -> None:
    """Draws the success of every variant at its evaluations into one PNG: the mean over its seeds in a band of its 95%
    interval, and each seed as a thin line. `stages` has the step at which each stage begins."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("a picture needs matplotlib: pip install 'sojourn[torch]'") from error
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    for number, (name, points) in enumerate((name, points) for name, points in results.items() if points):
        colour, x = f"C{number}", [p.steps for p in points]
        count = max(len(p.by_seed) for p in points)
        label = f"{title if name == UNNAMED else name} ({count} seed{'s' * (count != 1)})"
        axes.plot(x, [p.success.mean for p in points], "o-", ms=4, lw=1.8, color=colour, label=label)
        low, high = [p.success.low for p in points], [p.success.high for p in points]
        axes.fill_between(x, low, high, color=colour, alpha=0.12, lw=0)
        for seed in sorted({seed for p in points for seed in p.by_seed}) if count > 1 else ():
            own = [(p.steps, p.by_seed[seed].mean) for p in points if seed in p.by_seed]
            axes.plot(*zip(*own, strict=True), "-", lw=0.7, alpha=0.6, color=colour)
    for stage, start in stages.items():
        if start:
            axes.axvline(start, ls=":", lw=1, color="0.5")
        axes.annotate(
            stage, (start, 1.0), xytext=(3, -2), textcoords="offset points", fontsize=7, color="0.4", va="top"
        )
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("step")
    axes.set_ylabel("success in evaluations (mean, 95%, seeds)")
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
    write_file(out, lambda temporary: figure.savefig(temporary, format="png"))


def table(results: Mapping[str, Sequence[Point]]) -> list[str]:
    """Returns Markdown: for each variant its last evaluation, its seeds one by one, its difference from the first
    variant, and the best evaluation."""
    lines = [
        "| variant | seeds | steps | success at the end | of each seed | minus the first variant | best | at step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    first = next((name for name, points in results.items() if points), None)
    for name, points in results.items():
        if not points:
            lines.append(f"| {name} | 0 | | | | | | |")
            continue
        last, best = end(points), max(points, key=lambda point: point.success.mean)
        each = " ".join(f"{100 * one.mean:.0f}" for one in last.by_seed.values())
        compared = "" if first is None or name == first else difference(end(results[first]), last)
        fewest = min((point.steps for point in points if point.ended), default=last.steps)
        steps = f"{last.steps}" if fewest == last.steps else f"{fewest}–{last.steps}"
        lines.append(
            f"| {name} | {len(last.by_seed)} | {steps} | {last.success.percent} | {each} | {compared} | "
            f"{best.success.percent} | {best.steps} |"
        )
    return lines


def difference(first: Point, other: Point) -> str:
    """Says by how much another variant's success differs from the first's, in points: the mean over the seeds that both
    have, each compared with itself, and its 95% t interval, which is at least as wide as that of all their plays: so
    seeds that agree by chance, as those of small panels do, show nothing."""
    both = sorted(first.by_seed.keys() & other.by_seed.keys())
    if len(both) < 2:
        return "needs two seeds of both"
    before, after = ([of.by_seed[seed] for seed in both] for of in (first, other))
    gained = intervals.mean([b.mean - a.mean for a, b in zip(before, after, strict=True)])
    plays = intervals.difference(_of_all_plays(before), _of_all_plays(after))
    low, high = 100 * min(gained.low, plays.low), 100 * max(gained.high, plays.high)
    verdict = "better" if low > 0 else "worse" if high < 0 else "not shown to differ"
    return f"{100 * gained.mean:+.0f} [{low:+.0f}, {high:+.0f}], {verdict}"
