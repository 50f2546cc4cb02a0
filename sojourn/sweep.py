"""Plans the runs of a sweep (a recipe, values of some keys, seeds), and puts their results into a table and a picture.

Each run is an ordinary run folder of the sweep's folder, named after its values and its seed.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
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

    @property
    def name(self) -> str:
        return f"{self.variant}.seed={self.seed}"


class Point(NamedTuple):
    """The success of a variant at one evaluation: the mean over its seeds with a 95% t interval; where only one seed
    has come so far, that evaluation's own interval."""

    steps: int
    seeds: int
    success: Estimate


def plan(vary: Sequence[str], seeds: Sequence[int], overrides: Sequence[str]) -> list[PlannedRun]:
    """Returns the runs for every combination of the values in `vary` (such as "stages.rl.optim.lr=[1e-5, 3e-5]") and
    every seed. The seeds of a variant follow each other."""
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
    found: dict[str, dict[int, list[Estimate]]] = {run.variant: defaultdict(list) for run in runs}
    for planned in runs:
        path = folder / planned.name
        if not (path / "config.toml").is_file():
            continue
        run = RunFolder.read(path)
        done, starts = 0, dict[str, int]()
        for stage in run.config.get("stages", []):
            starts[str(stage["name"])] = done
            done += int(stage["steps"])
        for e in run.evaluations():
            success = Summary.from_json(e["summary"]).overall.success
            found[planned.variant][starts.get(str(e["stage"]), 0) + int(e["step"])].append(success)
    return {name: [_point(steps, at[steps]) for steps in sorted(at)] for name, at in found.items()}


def _point(steps: int, estimates: Sequence[Estimate]) -> Point:
    several = intervals.mean([e.mean for e in estimates])
    success = several._replace(low=max(0.0, several.low), high=min(1.0, several.high))
    return Point(steps, len(estimates), success if len(estimates) > 1 else estimates[0])


def draw(results: Mapping[str, Sequence[Point]], out: Path) -> None:
    """Draws the success of every variant at its evaluations into one PNG, with 95% intervals."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("a picture needs matplotlib: pip install 'sojourn[torch]'") from error
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    shown = {name: points for name, points in results.items() if points}
    widest = max((points[-1].steps for points in shown.values()), default=1)
    for number, (name, points) in enumerate(shown.items()):
        shift = (number - (len(shown) - 1) / 2) * 0.006 * widest  # so that intervals lie side by side
        y = [p.success.mean for p in points]
        errors = [[p.success.mean - p.success.low for p in points], [p.success.high - p.success.mean for p in points]]
        label = f"{name} ({max(p.seeds for p in points)} seeds)"
        axes.errorbar([p.steps + shift for p in points], y, yerr=errors, fmt="o-", ms=4, lw=1.2, capsize=2, label=label)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("step")
    axes.set_ylabel("success in evaluations (95%)")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
    write_file(out, lambda temporary: figure.savefig(temporary, format="png"))


def table(results: Mapping[str, Sequence[Point]]) -> list[str]:
    """Returns Markdown: for each variant its last evaluation, and the best one."""
    lines = ["| variant | seeds | steps | success at the end | best success | at step |", "|---|---|---|---|---|---|"]
    for name, points in results.items():
        if not points:
            lines.append(f"| {name} | 0 | | | | |")
            continue
        last, best = points[-1], max(points, key=lambda point: point.success.mean)
        lines.append(
            f"| {name} | {last.seeds} | {last.steps} | {last.success.percent} | {best.success.percent} | {best.steps} |"
        )
    return lines
