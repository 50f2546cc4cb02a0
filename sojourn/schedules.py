"""Learning-rate schedules. Each returns the factor on `lr` at an update of a stage, after a linear warm-up.

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
    """Returns the factor on `lr` at an update of a stage of `steps` updates."""

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


def _ramp(step: int, warmup: int) -> float:
    """Returns the factor of a linear warm-up."""
    return min(1.0, (step + 1) / (warmup + 1))


def _progress(step: int, steps: int, warmup: int) -> float:
    """Returns the progress after the warm-up: 0 at its end, 1 one update after the last."""
    return min(1.0, max(0, step - warmup) / max(1, steps - warmup))
