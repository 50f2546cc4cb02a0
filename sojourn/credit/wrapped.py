"""What estimators share that change another estimator's rewards or credit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sojourn.abilities import env_needs, min_group_size, provided
from sojourn.composite import HasBases
from sojourn.credit.relative import Values
from sojourn.protocols import Estimator
from sojourn.types import Credit, FloatArray

PerTurn = Sequence[Sequence[tuple[FloatArray, ...]]]


class Wrapped(HasBases):
    """Base of estimators that have another estimator as their `base`: what the base needs, provides and remembers is
    passed on, and `extra_streams` are needed besides."""

    extra_streams = frozenset[str]()

    base: Estimator

    @property
    def needs(self) -> frozenset[str]:
        return self.base.needs | self.extra_streams

    @property
    def min_group_size(self) -> int:
        return min_group_size(self.base)

    @property
    def env_needs(self) -> frozenset[str]:
        return env_needs(self.base)

    @property
    def provides(self) -> frozenset[str]:
        return provided(self.base)


def turn_means(stream: PerTurn) -> list[list[Values]]:
    """Returns the mean of a stream over the tokens of each turn: (T,) per trajectory; 0 for a turn without tokens."""
    return [
        [np.array([turn.mean() if len(turn) else 0.0 for turn in turns], dtype=np.float64) for turns in group]
        for group in stream
    ]


def with_tokens(stream: PerTurn) -> list[list[NDArray[np.bool_]]]:
    """Returns which turns have any tokens: (T,) per trajectory; the others have nothing that a stream could tell."""
    return [[np.array([len(turn) > 0 for turn in turns], dtype=bool) for turns in group] for group in stream]


def scale_turns(credit: Credit, factors: Values, shift: Values | float = 0.0) -> Credit:
    """Multiplies the advantages of each turn by its factor (T,) and then adds its shift (T,)."""
    turns = zip(credit.tokens, factors, np.broadcast_to(shift, np.shape(factors)), strict=True)
    return replace(credit, tokens=tuple((turn * factor + offset).astype(np.float32) for turn, factor, offset in turns))
