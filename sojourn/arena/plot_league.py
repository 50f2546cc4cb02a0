"""Draws the ratings of a league."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sojourn.intervals import Estimate
from sojourn.plot import figure_class
from sojourn.record.atomic import write_file


class Rated(NamedTuple):
    """The rating of a run's checkpoint after `step` steps, or of another operator, which has no step."""

    name: str
    step: int | None
    rating: Estimate


def league_curve(rated: Sequence[Rated], out: Path) -> None:
    """Draws ratings with their 95% intervals against training steps to a PNG: a line for each run, and a dashed one
    across for each other operator; raises `RecordError` if `out` is no PNG or cannot be written."""
    figure = figure_class(out)(figsize=(6, 4), dpi=120, layout="constrained")
    panel = figure.subplots()
    for number, name in enumerate(dict.fromkeys(one.name for one in rated)):
        colour = f"C{number}"
        points = sorted((one.step, one.rating) for one in rated if one.name == name and one.step is not None)
        if not points:
            [mean] = [one.rating.mean for one in rated if one.name == name]
            panel.axhline(mean, ls="--", lw=1, color=colour, label=name)
            continue
        means = [rating.mean for _, rating in points]
        errors = [[one.mean - one.low for _, one in points], [one.high - one.mean for _, one in points]]
        panel.errorbar(
            [step for step, _ in points], means, yerr=errors, fmt="o-", capsize=3, lw=1, color=colour, label=name
        )
    panel.set_xlabel("training step")
    panel.set_ylabel("rating (Elo)")
    panel.legend(frameon=False, fontsize=8)
    write_file(out, lambda temporary: figure.savefig(temporary, format="png"))
