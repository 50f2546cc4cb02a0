"""Formats numbers for people, and draws sparklines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

ZERO_MEANS, ROUNDING = ("kl", "drift"), 1e-8  # divergences that fp32 does not tell from 0
BARS = "▁▂▃▄▅▆▇█"


def number(value: float) -> str:
    """Returns a number with three significant digits, "-" for NaN and infinity."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def metric(values: Mapping[str, float], name: str) -> str:
    """Returns a metric as `number` does, "-" if it is absent. Rounding errors of a mean that is 0 are shown as 0."""
    if name not in values:
        return "-"
    return number(0.0 if name in ZERO_MEANS and abs(values[name]) < ROUNDING else values[name])


def percent(values: Mapping[str, float], name: str) -> str:
    """Returns a metric in percent, "-" if it is absent."""
    value = values.get(name, math.nan)
    return f"{100 * value:.1f}%" if math.isfinite(value) else "-"


def signed(value: float) -> str:
    return f"{value:+.3g}" if math.isfinite(value) else "-"


def duration(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def size(count: int) -> str:
    """Returns a number of bytes with its unit."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def sparkline(values: Sequence[float], width: int, low: float | None = None, high: float | None = None) -> str:
    """Returns the values as a row of at most `width` bars; of more values, neighbours are averaged.

    The bars range from `low` to `high`, by default the smallest and the largest value. NaN and infinity are blank.
    """
    x = np.asarray(values, dtype=np.float64)
    if len(x) > width:
        x = np.array([_mean(part) for part in np.array_split(x, width)])
    finite = x[np.isfinite(x)]
    if not len(finite):
        return ""
    bottom = float(finite.min()) if low is None else low
    span = (float(finite.max()) if high is None else high) - bottom
    return "".join(_bar((value - bottom) / span if span > 0 else 0.0) for value in x)


def _mean(part: np.ndarray) -> float:
    finite = part[np.isfinite(part)]
    return float(finite.mean()) if len(finite) else math.nan


def _bar(fraction: float) -> str:
    return BARS[min(int(max(fraction, 0.0) * len(BARS)), len(BARS) - 1)] if math.isfinite(fraction) else " "
