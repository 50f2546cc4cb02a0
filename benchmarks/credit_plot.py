"""The picture of `credit.py`: learning curves, success at the end, what a step costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sojourn import intervals
from sojourn.plot import smooth

COLOURS = {"estimator": "#2b6cb0", "loss": "#c05621", "critic": "#2f855a", "GRPO": "#4a5568"}
COLUMNS = 6


def kind(changes: Mapping[str, Any]) -> str:
    """Returns the settings in which a method differs from GRPO."""
    if not changes:
        return "GRPO"
    return "critic" if "critic" in changes else "estimator" if "estimator" in changes else "loss"


def draw(figures: Mapping[str, Any], out: Path) -> None:
    """Above a panel for each method, with the mean curve of GRPO in grey; below all of them, the best first."""
    from matplotlib.figure import Figure

    methods = sorted(figures["summary"], key=lambda method: -figures["summary"][method]["final"][0])
    colours = {method: COLOURS[kind(figures["methods"][method])] for method in methods}
    rows = -(-len(methods) // COLUMNS)
    figure = Figure(figsize=(13, 2 * rows + 0.27 * len(methods) + 2), dpi=110, layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[2 * rows, 0.27 * len(methods) + 2])
    above, below = parts
    _curves(above.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False), figures, colours)
    above.supxlabel("step", fontsize=9)
    above.supylabel("success in training", fontsize=9)
    seeds = max(len(found) for found in figures["runs"].values())
    above.suptitle(f"mean over 5 steps and {seeds} seeds, with 95% intervals over seeds; grey: GRPO", fontsize=10)
    _table(below.subplots(1, 3, sharey=True), figures["summary"], methods, colours)
    figure.savefig(out)


def _curves(panels: Any, figures: Mapping[str, Any], colours: Mapping[str, str]) -> None:
    base = _band(figures["runs"].get("grpo", {}))
    for panel, method in zip(panels.flat, colours, strict=False):
        if base is not None:
            panel.plot(base[0], color="0.6", lw=1.2)
        if (found := _band(figures["runs"][method])) is not None:
            middle, low, high = found
            panel.fill_between(np.arange(len(middle)), low, high, color=colours[method], alpha=0.2, lw=0)
            panel.plot(middle, color=colours[method], lw=1.6)
        panel.set_title(method, fontsize=9, color=colours[method])
        panel.set_ylim(0, 1)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.25)
    for panel in panels.flat[len(colours) :]:
        panel.set_axis_off()


def _band(runs: Mapping[str, Any]) -> tuple[list[float], list[float], list[float]] | None:
    """The mean over seeds at each step, and the ends of its interval; none for one seed, as wide as the axis."""
    if not runs:
        return None
    curves = np.array([smooth(np.array(of["success"], dtype=np.float64)) for of in runs.values()])
    found = [intervals.mean(curves[:, step].tolist()) for step in range(curves.shape[1])]
    ends = [(e.low, e.high) if np.isfinite(e.low) else (e.mean, e.mean) for e in found]
    return [e.mean for e in found], [max(0.0, low) for low, _ in ends], [min(1.0, high) for _, high in ends]


def _table(panels: Any, summary: Mapping[str, Any], methods: Sequence[str], colours: Mapping[str, str]) -> None:
    titles = {
        "final": "success on held-out tasks",
        "final_minus_grpo": "the same less GRPO's, paired by seed",
        "times_grpo": "seconds of a step, times GRPO's",
    }
    for panel, (name, title) in zip(panels, titles.items(), strict=True):
        for row, method in enumerate(methods):
            mean, low, high = summary[method][name]
            if mean is None:
                continue
            panel.plot(mean, row, "o", color=colours[method], markersize=5)
            if low is not None:
                panel.plot([low, high], [row, row], color=colours[method], lw=1.4)
        panel.set_title(f"{title} (95%)", fontsize=9)
        panel.grid(axis="x", alpha=0.25)
        panel.tick_params(labelsize=8)
    panels[1].axvline(0, color="0.6", lw=0.8)
    panels[2].axvline(1, color="0.6", lw=0.8)
    panels[0].set_yticks(range(len(methods)), methods)
    panels[0].set_ylim(len(methods) - 0.5, -0.5)
    shown = [label for label, colour in COLOURS.items() if colour in colours.values()]
    handles = [panels[0].plot([], [], "o", color=COLOURS[label], label=label)[0] for label in shown]
    panels[2].legend(handles=handles, fontsize=8, frameon=False, title="instead of GRPO's", title_fontsize=8)
