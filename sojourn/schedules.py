"""Schedules. Each returns a factor at a step of a stage: on `lr` at an update, or on the budgets of a step's episodes.

`step`, `steps` and `warmup` count updates: every step of a stage makes as many as it has minibatches, also where it has
nothing to train. As with the schedules of torch and transformers, the first update has number 0 and the last has number
`steps` - 1, so that `final` would be reached one update after the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Protocol

from sojourn.config.fields import Range


class Schedule(Protocol):
    """Returns the factor on `lr`, or on a budget, at an update of a stage of `steps` updates."""

    def __call__(self, step: int, steps: int) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Keeps `lr` throughout, after `warmup` steps."""

    warmup: Annotated[int, Range(0)] = 0

    def __call__(self, step: int, steps: int) -> float:
        return _ramp(step, self.warmup)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Falls from `lr` towards `lr * final` in a straight line, which it would reach one update after the stage's
    last."""

    warmup: Annotated[int, Range(0)] = 0
    final: Annotated[float, Range(0, 1)] = 0.0

    def __call__(self, step: int, steps: int) -> float:
        return _ramp(step, self.warmup) * (1 - (1 - self.final) * _progress(step, steps, self.warmup))


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Falls from `lr` towards `lr * final` along half a cosine, which it would reach one update after the stage's
    last."""

    warmup: Annotated[int, Range(0)] = 0
    final: Annotated[float, Range(0, 1)] = 0.0

    def __call__(self, step: int, steps: int) -> float:
        wave = 0.5 * (1 + math.cos(math.pi * _progress(step, steps, self.warmup)))
        return _ramp(step, self.warmup) * (self.final + (1 - self.final) * wave)


@dataclass(frozen=True, kw_only=True)
class Stairs:
    """Has each of the `factors` for `every` steps, one after another, and keeps the last, after `warmup` steps in which
    it rises in a line."""

    warmup: Annotated[int, Range(0)] = 0
    factors: tuple[Annotated[float, Range(above=0)], ...] = (0.33, 0.67, 1.0)
    every: Annotated[int, Range(1)] = 100

    def __post_init__(self) -> None:
        if not self.factors:
            raise ValueError("factors = []: give at least one, such as factors = [0.5, 1]")

    def __call__(self, step: int, steps: int) -> float:
        return _ramp(step, self.warmup) * self.factors[min(step // self.every, len(self.factors) - 1)]


def _ramp(step: int, warmup: int) -> float:
    """Returns the factor of a linear warm-up."""
    return min(1.0, (step + 1) / (warmup + 1))


def _progress(step: int, steps: int, warmup: int) -> float:
    """Returns the progress after the warm-up: 0 at its end, 1 one update after the last."""
    return min(1.0, max(0, step - warmup) / max(1, steps - warmup))
