"""What estimators have in common that change another estimator's credit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from sojourn.abilities import env_needs, least_size, provided
from sojourn.composite import HasBases
from sojourn.credit.relative import Values
from sojourn.types import Credit, FloatArray

PerTurn = Sequence[Sequence[tuple[FloatArray, ...]]]


class Wrapped(HasBases):
    """With another estimator as `base`: what that one asks for is asked for, what it remembers is remembered."""

    also: ClassVar[frozenset[str]] = frozenset()

    @property
    def needs(self) -> frozenset[str]:
        return self.base.needs | self.also

    @property
    def least_size(self) -> int:
        return least_size(self.base)

    @property
    def env_needs(self) -> frozenset[str]:
        return env_needs(self.base)

    @property
    def provides(self) -> frozenset[str]:
        return provided(self.base)


def means(streams: PerTurn) -> list[list[Values]]:
    """The mean over the tokens of each turn: (T,) for each trajectory; 0 for a turn without any."""
    return [
        [np.array([turn.mean() if len(turn) else 0.0 for turn in turns], dtype=np.float64) for turns in group]
        for group in streams
    ]


def scaled(credit: Credit, factors: Values, shift: Values | float = 0.0) -> Credit:
    """Each turn's advantages times its factor, plus its shift: (T,)."""
    moved = zip(credit.tokens, factors, np.broadcast_to(shift, np.shape(factors)), strict=True)
    return replace(credit, tokens=tuple((turn * factor + more).astype(np.float32) for turn, factor, more in moved))
