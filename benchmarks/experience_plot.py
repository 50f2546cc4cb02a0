"""The picture of `experience.py`: how much better than live groups each variant ended, in each world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = {"better": "#2f855a", "worse": "#c53030", "not told apart": "#4a5568"}


def draw(found: Mapping[tuple[str, str], Mapping[str, Any]], base: str, out: Path) -> None:
    """Draws a panel for each part, one below the other, and each world, side by side; `found` has the figures of each
    world and part. Methods are in the order of the first world."""
    from matplotlib.figure import Figure

    worlds = list(dict.fromkeys(world for world, _ in found))
    parts = list(dict.fromkeys(part for _, part in found))
    orders = {part: _order([found[w, part]["summary"] for w in worlds if (w, part) in found], base) for part in parts}
    rows = [len(orders[part]) for part in parts]
    figure = Figure(figsize=(4.2 * len(worlds) + 2, 0.24 * sum(rows) + 2), dpi=110, layout="constrained")
    panels: Any = figure.subplots(len(parts), len(worlds), sharex=True, squeeze=False, height_ratios=rows)
    for row, part in enumerate(parts):
        for column, world in enumerate(worlds):
            panel = panels[row, column]
            if (world, part) in found:
                _panel(panel, found[world, part]["summary"], orders[part], base)
            panel.set_title(f"{world}, {part}", fontsize=9)
            panel.set_yticks(range(len(orders[part])), orders[part] if column == 0 else [])
            panel.set_ylim(len(orders[part]) - 0.5, -0.5)
            panel.tick_params(labelsize=8)
    figure.supxlabel("success on held-out tasks less that of live groups, in points, paired by seed (95%)", fontsize=9)
    figure.savefig(out)


def _order(summaries: Sequence[Mapping[str, Any]], base: str) -> list[str]:
    """Returns the variants without the base, those first that ended best in the first world."""
    names = dict.fromkeys(name for summary in summaries for name in summary if name != base)
    ends = {name: [s[name][f"final_minus_{base}"][0] for s in summaries if name in s] for name in names}
    return sorted(names, key=lambda name: -next((gain for gain in ends[name] if gain is not None), -1.0))


def _panel(panel: Any, summary: Mapping[str, Any], order: Sequence[str], base: str) -> None:
    for row, name in enumerate(order):
        mean, low, high = summary.get(name, {}).get(f"final_minus_{base}", (None, None, None))
        if mean is None:
            continue
        colour = COLOURS[summary[name]["verdict"]]
        panel.plot(100 * mean, row, "o", color=colour, markersize=5)
        if low is not None:
            panel.plot([100 * low, 100 * high], [row, row], color=colour, lw=1.4)
    panel.axvline(0, color="0.6", lw=0.8)
    panel.grid(axis="x", alpha=0.25)
