"""Draws what a search at test time brings: success against the tokens that a play takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sojourn.plot import EVALUATION, figure_class, scale_success
from sojourn.record.atomic import write_file
from sojourn.record.summary import Summary


def search_curve(summaries: Mapping[str, Summary], agent: str, out: Path) -> None:
    """Draws the success of evaluations with their 95% intervals against their sampled tokens a play to a PNG, on a
    logarithmic axis, with the name of each; raises RecordError if `out` is no PNG or cannot be written."""
    figure = figure_class(out)(figsize=(6, 4), dpi=120, layout="constrained")
    panel = figure.subplots()
    found = [(summary.overall.tokens.mean, summary.overall.success, name) for name, summary in summaries.items()]
    tokens = [max(mean, 1.0) for mean, _, _ in found]
    successes = [success for _, success, _ in found]
    means = [success.mean for success in successes]
    errors = [[one.mean - one.low for one in successes], [one.high - one.mean for one in successes]]
    panel.errorbar(tokens, means, yerr=errors, fmt="o-", color=EVALUATION, capsize=3, lw=1)
    for x, y, (_, _, name) in zip(tokens, means, found, strict=True):
        panel.annotate(name, (x, y), xytext=(4, -12), textcoords="offset points", fontsize=8, color="0.35")
    panel.set_xscale("log")
    panel.set_xlabel(f"sampled tokens a play ({agent})")
    scale_success(panel)
    write_file(out, lambda temporary: figure.savefig(temporary, format="png"))
