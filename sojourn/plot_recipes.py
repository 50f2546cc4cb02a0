"""Draws the learning curves of runs of several recipes into one PNG, a colour for each recipe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sojourn import plot
from sojourn.errors import RecordError
from sojourn.record.atomic import write_file
from sojourn.record.run import RunFolder
from sojourn.record.stage_names import named

COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#975a16", "#2c7a7b", "#4a5568")
MAX_KEYS = 2  # that a legend names of those in which recipes differ
LOWER = {"entropy": "entropy (nats)"}


@dataclass(frozen=True)
class Recipe:
    """The runs of one recipe, which differ only in their seeds; `label` tells it from the others of the picture."""

    label: str
    curves: tuple[plot.Curve, ...]


def draw(run_folders: Sequence[Path], out: Path) -> None:
    """Draws the curves of runs to a PNG: as `plot.curve` does where all are seeds of one recipe, else success and
    entropy with a colour for each recipe.

    Of a recipe with several seeds a line is their mean, in a band from the lowest to the highest. Evaluations are
    diamonds: the mean over the seeds. A stage is drawn after the one before it; the longest seed of a recipe counts.
    Raises RecordError for more recipes than colours, and as `plot.curve` does.
    """
    recipes = by_recipe([Path(folder) for folder in run_folders])
    if len(recipes) == 1:
        return plot.curve(run_folders, out)
    if len(recipes) > len(COLOURS):
        raise RecordError(
            f"{len(recipes)} recipes cannot be told apart in one picture: expected at most {len(COLOURS)}: draw fewer, "
            "or compare them in `sojourn view`"
        )
    figure = plot.figure_class(out)(figsize=(8, 6), dpi=120, layout="constrained")
    top, *lower = figure.subplots(1 + len(LOWER), 1, sharex=True, height_ratios=[3.2, *[1] * len(LOWER)])
    for recipe, colour in zip(recipes, COLOURS, strict=False):
        starts, _ = plot.stage_starts(recipe.curves)
        _success(top, recipe, starts, colour)
        for panel, (name, label) in zip(lower, LOWER.items(), strict=True):
            plot.draw_lines(panel, [one.series(name, starts) for one in recipe.curves], starts, colour=colour)
            panel.set_ylabel(label, fontsize=8)
    for panel in (top, *lower):
        plot.frame(panel, {})
    plot.scale_success(top)
    top.legend(loc="best", fontsize=8, frameon=False)
    (lower or [top])[-1].set_xlabel("step of the whole run")
    write_file(out, lambda temporary: figure.savefig(temporary, format="png"))


def by_recipe(run_folders: Sequence[Path]) -> list[Recipe]:
    """Returns the recipes of runs, in the order of their first runs, with the curves of their seeds."""
    runs = [RunFolder.read(folder) for folder in run_folders]
    found: list[list[int]] = []
    values = [plot.compared(run) for run in runs]
    for number, own in enumerate(values):
        like = next((recipe for recipe in found if values[recipe[0]] == own), None)
        if like is None:
            found.append([number])
        else:
            like.append(number)
    curves = plot.read_curves(run_folders)
    labels = _labels([runs[recipe[0]] for recipe in found], [values[recipe[0]] for recipe in found])
    return [Recipe(label, tuple(curves[n] for n in recipe)) for label, recipe in zip(labels, found, strict=True)]


def _labels(runs: Sequence[RunFolder], values: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns what tells the recipes apart: their names where all differ, else the keys in which they do, too."""
    names = [str(run.config.get("name", run.path.name)) for run in runs]
    if len(set(names)) == len(names):
        return names
    keys = dict.fromkeys(key for own in values for key in own)
    unlike = [key for key in keys if any(own.get(key) != values[0].get(key) for own in values)]
    more = f" and {len(unlike) - MAX_KEYS} more" if len(unlike) > MAX_KEYS else ""
    return [
        f"{name}: {', '.join(f'{named(key, run.config)} = {own.get(key)}' for key in unlike[:MAX_KEYS])}{more}"
        for name, run, own in zip(names, runs, values, strict=True)
    ]


def _success(panel: Any, recipe: Recipe, starts: Mapping[str, int], colour: str) -> None:
    series = [one.series("success", starts) for one in recipe.curves]
    plot.draw_lines(panel, series, starts, colour=colour)
    at: dict[int, list[float]] = defaultdict(list)
    for one in recipe.curves:
        for stage, step, success in one.evaluations:
            if success.n:
                at[starts.get(stage, 0) + step].append(success.mean)
    seeds = f" ({len(recipe.curves)} seeds)" if len(recipe.curves) > 1 else ""
    steps = sorted(at)
    means = [float(np.mean(at[step])) for step in steps]
    panel.plot(steps, means, "D--", color=colour, markersize=5, lw=0.8, label=f"{recipe.label}{seeds}")
