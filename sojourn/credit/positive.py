"""Another estimator's advantages, those above 0 alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from sojourn.config.registry import Kind, Range
from sojourn.credit.turn_gae import TurnGAE
from sojourn.credit.wrapped import Wrapped
from sojourn.types import Credit, Group, Score, Streams


def _returns() -> TurnGAE:
    return TurnGAE(discount=0.95, lam=1.0)


@dataclass(frozen=True, kw_only=True)
class Positive(Wrapped):
    """max(A, 0) over the deviation of the positive advantages of the step (positive-advantage filtering of Odysseus:
    2026, arXiv:2605.00347, eq. 1).

    Tokens that do worse than expected are not trained. The deviation is that of tokens, as in the authors' code, but
    the population's; it is at least `least`, since advantages that are nearly alike would be blown up by it.
    """

    base: Annotated[Any, Kind("estimator")] = field(default_factory=_returns)
    min_std: Annotated[float, Range(above=0)] = 0.1

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        found = self.base(groups, scores, streams)
        every = np.concatenate([np.zeros(0), *(turn for some in found for c in some for turn in c.tokens)])
        above = every[every > 0]
        scale = 1 / max(float(above.std()), self.min_std) if len(above) else 0.0
        return [[self._filtered(credit, scale) for credit in some] for some in found]

    @staticmethod
    def _filtered(credit: Credit, scale: float) -> Credit:
        return replace(credit, tokens=tuple((np.maximum(turn, 0) * scale).astype(np.float32) for turn in credit.tokens))
