"""Draws what `vs_trl.py` found of learning: success by episodes, of both sides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

COLOURS = {"sojourn": "#2b6cb0", "trl": "#c05621"}


def draw(figures: Mapping[str, Any], out: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    width = max(1, len(figures["sojourn"]["curves"][0]) // 12)
    for side, colour in COLOURS.items():
        curves = np.array(figures[side]["curves"])
        smooth = np.array([np.convolve(c, np.ones(width) / width, mode="valid") for c in curves])
        x = (np.arange(smooth.shape[1]) + width) * figures["episodes_per_step"]
        for one in smooth:
            axes.plot(x, one, color=colour, alpha=0.35, linewidth=1)
        axes.plot(x, smooth.mean(0), color=colour, linewidth=2.2, label=f"{side}, mean of {len(curves)} seeds")
    axes.set(xlabel="episodes", ylabel=f"success in training (mean of {width} steps)", ylim=(0, 1))
    axes.legend(loc="lower right")
    axes.grid(alpha=0.25)
    figure.savefig(out)
