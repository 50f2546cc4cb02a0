"""Positive advantages alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from sojourn.config.fields import Kind, Range
from sojourn.credit.turn_gae import TurnGAE
from sojourn.credit.wrapped import Wrapped
from sojourn.protocols import Estimator
from sojourn.types import Credit, Group, Score, Streams


def _return_minus_value() -> TurnGAE:
    return TurnGAE(discount=0.95, lam=1.0)


@dataclass(frozen=True, kw_only=True)
class Positive(Wrapped):
    """Another estimator's advantages without the negative ones: max(A, 0), divided by the standard deviation of the
    positive advantages of the step (positive-advantage filtering of Odysseus: 2026, arXiv:2605.00347, eq. 1).

    Tokens that do worse than expected are not trained. The standard deviation is over tokens, as in the authors' code,
    but the population's; it is at least `min_std`, since a smaller one would blow up advantages that are nearly equal.
    """

    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=_return_minus_value)
    min_std: Annotated[float, Range(above=0)] = 0.1

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        credits = self.base(groups, scores, streams)
        every = np.concatenate([np.zeros(0), *(turn for group in credits for c in group for turn in c.tokens)])
        positive = every[every > 0]
        scale = 1 / max(float(positive.std()), self.min_std) if len(positive) else 0.0
        return [[self._filtered(credit, scale) for credit in group] for group in credits]

    @staticmethod
    def _filtered(credit: Credit, scale: float) -> Credit:
        return replace(credit, tokens=tuple((np.maximum(turn, 0) * scale).astype(np.float32) for turn in credit.tokens))
