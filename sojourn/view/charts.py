"""Draws line charts as SVG, for the pages of the viewer and for reports; they need no script to be read.

Colours are classes (`c0` to `c7`) of the style sheet, so that they follow light and dark mode. The values of all points
are in `data-` attributes, which a script shows when the mouse is over them. matplotlib draws the PNGs (`sojourn.plot`):
its SVGs are 3.6 times as large, take 25 times as long, and have no values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

COLOURS = 8
WIDTH, HEIGHT = 420, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 12, 24
MAX_POINTS = 240  # of a drawn line, since more could not be told apart in its width
Points = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A curve of values `y` at `x`, with a band from `low` to `high`; a NaN leaves a gap."""

    name: str
    x: Points
    y: Points
    low: Points | None = None
    high: Points | None = None


def smooth(values: Points, window: float) -> Points:
    """Returns the mean over neighbours, weighted by a Gaussian with a deviation of `window` points; gaps stay gaps.

    The weights are symmetric, so that nothing is shifted to later steps.
    """
    if not window > 0 or not len(values):
        return values
    reach = math.ceil(min(3 * window, len(values)))
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / window) ** 2)
    known = np.isfinite(values)
    total = np.convolve(np.where(known, values, 0.0), weights, "full")[reach : reach + len(values)]
    weight = np.convolve(known.astype(float), weights, "full")[reach : reach + len(values)]
    return np.where(known, total / np.where(weight > 0, weight, 1.0), np.nan)


def mean_of_seeds(curves: Sequence[Curve], name: str) -> Curve:
    """Returns the mean of several seeds at each x that any of them has, with their range as a band."""
    x = np.unique(np.concatenate([curve.x for curve in curves]))
    rows = np.full((len(curves), len(x)), np.nan)
    for row, curve in zip(rows, curves, strict=True):
        row[np.searchsorted(x, curve.x)] = curve.y
    known = np.isfinite(rows)
    count = known.sum(axis=0)
    mean = np.where(count > 0, np.where(known, rows, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)
    low = np.where(count > 0, np.where(known, rows, np.inf).min(axis=0), np.nan)
    high = np.where(count > 0, np.where(known, rows, -np.inf).max(axis=0), np.nan)
    return Curve(name, x, mean, low, high)


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Returns about `about` round numbers from low to high."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Formats a number for an axis or a cell: 0.0012, 3.4, 120, 12k."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-4:
        return f"{value:.2g}"
    if size >= 9_999.5:
        return f"{value / 1000:.4g}k"
    return f"{value:.3g}" if size < 999.5 else f"{value:.0f}"


def chart(
    title: str,
    curves: Sequence[Curve],
    *,
    fraction: bool = False,
    marks: Sequence[tuple[float, str]] = (),
    x: str = "step",
) -> Markup:
    """Draws curves over steps, or over what `x` names; `fraction` fixes the y axis to 0..1, `marks` are labelled
    vertical lines."""
    drawn = [thinned(curve) for curve in curves if np.isfinite(curve.y).any()]
    if not drawn:
        return Markup('<figure class="chart empty"><figcaption>{}</figcaption><p>no values yet</p></figure>').format(
            title
        )
    frame = _Frame.around(drawn, fraction)
    parts = [_axes(frame), *(_mark(frame, at, label) for at, label in marks)]
    parts += [_band(frame, curve, at % COLOURS) for at, curve in enumerate(drawn)]
    parts += [_line(frame, curve, at % COLOURS) for at, curve in enumerate(drawn)]
    legend = Markup("").join(
        Markup('<span class="key c{}">{}</span>').format(at % COLOURS, curve.name) for at, curve in enumerate(drawn)
    )
    values = f"[{','.join(map(_values, drawn))}]"
    area = json.dumps([frame.x0, frame.x1, frame.y0, frame.y1])
    return Markup(
        '<figure class="chart"><figcaption>{}<span class="legend">{}</span></figcaption>'
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" data-x="{}" data-curves="{}" '
        'data-area="{}">{}</svg></figure>'
    ).format(title, legend if len(drawn) > 1 else "", WIDTH, HEIGHT, title, x, values, area, Markup("").join(parts))


def spark(values: Sequence[float], fraction: bool = False) -> Markup:
    """Draws a line without axes, for a row of a table."""
    y = np.asarray(values, dtype=np.float64)
    known = y[np.isfinite(y)]
    if len(known) < 2:
        return Markup("")
    low, high = (0.0, 1.0) if fraction else (float(known.min()), float(known.max()))
    x = np.linspace(1, 79, len(y))
    height = 17 - 15 * (y - low) / (high - low or 1.0)
    path = _path(list(zip(x.tolist(), height.tolist(), strict=True)))
    return Markup(
        '<svg class="spark" viewBox="0 0 80 18" aria-hidden="true"><path class="line c0" d="{}"/></svg>'
    ).format(path)


@dataclass(frozen=True)
class _Frame:
    x0: float
    x1: float
    y0: float
    y1: float

    @classmethod
    def around(cls, curves: Sequence[Curve], fraction: bool) -> _Frame:
        x = np.concatenate([curve.x for curve in curves])
        y = np.concatenate([part for c in curves for part in (c.y, c.low, c.high) if part is not None])
        y = y[np.isfinite(y)]
        low, high = (0.0, 1.0) if fraction else (float(y.min()), float(y.max()))
        if low == high:
            low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
        room = 0.0 if fraction else 0.05 * (high - low)
        first, last = float(x.min()), float(x.max())
        return cls(first, last if last > first else first + 1.0, low - room, high + room)

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - self.x0) / (self.x1 - self.x0)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - self.y0) / (self.y1 - self.y0)

    def points(self, x: Points, y: Points) -> list[tuple[float, float]]:
        x_pixels = LEFT + (WIDTH - LEFT - RIGHT) * (x - self.x0) / (self.x1 - self.x0)
        y_pixels = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - self.y0) / (self.y1 - self.y0)
        return list(zip(x_pixels.tolist(), y_pixels.tolist(), strict=True))


def thinned(curve: Curve) -> Curve:
    """Returns at most `MAX_POINTS` points: of each segment the one farthest from its neighbours, to keep spikes."""
    count = len(curve.x)
    if count <= MAX_POINTS:
        return curve
    size = math.ceil(count / (MAX_POINTS - 1))
    distance = np.full(math.ceil(count / size) * size, -1.0)
    distance[:count] = np.nan_to_num(np.abs(curve.y - smooth(curve.y, 2.0 * size)), nan=-1.0)
    rows = distance.reshape(-1, size)
    kept = np.minimum(np.arange(len(rows)) * size + rows.argmax(axis=1), count - 1)
    kept = np.unique(np.append(kept, count - 1))  # the last point is always kept
    bands = [None if part is None else part[kept] for part in (curve.low, curve.high)]
    return Curve(curve.name, curve.x[kept], curve.y[kept], *bands)


def _axes(frame: _Frame) -> Markup:
    lines: list[Markup] = []
    for value in ticks(frame.y0, frame.y1):
        y = frame.y(value)
        lines.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(LEFT, WIDTH - RIGHT, y, y)
        )
        lines.append(Markup('<text x="{}" y="{:.1f}" class="left">{}</text>').format(LEFT - 6, y + 3.5, number(value)))
    for value in ticks(frame.x0, frame.x1, 6):
        if value == int(value):
            lines.append(
                Markup('<text x="{:.1f}" y="{}" class="below">{}</text>').format(
                    frame.x(value), HEIGHT - 7, number(value)
                )
            )
    return Markup("").join(lines)


def _mark(frame: _Frame, at: float, label: str) -> Markup:
    x = frame.x(at)
    line = Markup('<line class="mark" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>').format(x, x, TOP, HEIGHT - BOTTOM)
    return line + Markup('<text x="{:.1f}" y="{}" class="word">{}</text>').format(x + 3, TOP + 8, label)


def _band(frame: _Frame, curve: Curve, colour: int) -> Markup:
    if curve.low is None or curve.high is None:
        return Markup("")
    known = np.isfinite(curve.low) & np.isfinite(curve.high)
    if known.sum() < 2:
        return Markup("")
    x = curve.x[known]
    around = frame.points(x, curve.high[known]) + frame.points(x, curve.low[known])[::-1]
    return Markup('<path class="band c{}" d="{}Z"/>').format(colour, _path(around))


def _line(frame: _Frame, curve: Curve, colour: int) -> Markup:
    points = frame.points(curve.x, curve.y)
    known = [point for point in points if math.isfinite(point[1])]
    dots = Markup("")
    if len(known) <= 30:  # few values are to be seen one by one, and one alone is no line
        dots = Markup("").join(
            Markup('<circle class="dot c{}" cx="{:.1f}" cy="{:.1f}" r="2"/>').format(colour, x, y) for x, y in known
        )
    return Markup('<path class="line c{}" d="{}"/>{}').format(colour, _path(points), dots)


def _path(points: Sequence[tuple[float, float]]) -> str:
    commands: list[str] = []
    pen = "M"
    for x, y in points:
        if not math.isfinite(y):
            pen = "M"
            continue
        commands.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    return "".join(commands)


def _values(curve: Curve) -> str:
    """Returns the curve as JSON, for the script that shows the values."""
    return f'{{"name":{json.dumps(curve.name)},"x":{_plain(curve.x)},"y":{_plain(curve.y)}}}'


def _plain(values: Points) -> str:
    return f"[{','.join([f'{v:.6g}' if v - v == 0 else 'null' for v in values.tolist()])}]"
