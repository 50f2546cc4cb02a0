"""Advantages by how sure the policy was, and a bonus for what makes it sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from sojourn.config.registry import Kind, Range
from sojourn.credit.grpo import GRPO
from sojourn.credit.relative import Values, concatenated
from sojourn.credit.wrapped import Wrapped, turn_means, scale_turns
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class EMPG(Wrapped):
    """Another estimator's advantage of each turn, times exp(-k H) over the step's mean of it, plus `bonus` times
    exp(-k' H') of the next turn, less the mean over all turns of the step (Wang et al. 2025, arXiv:2509.09265, eq.
    7-12).

    H is the turn's mean entropy, from 0 for the least of the step to 1 for the greatest. The paper's group without
    signal is no exception: its turns still get the bonus.
    """

    base: Annotated[Any, Kind("estimator")] = field(default_factory=GRPO)
    sharpness: Annotated[float, Range(0)] = 1.0
    sharpness_next: Annotated[float, Range(0)] = 1.0
    clarity_coef: float = 0.05

    extra_streams: ClassVar[frozenset[str]] = frozenset({"entropy"})

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        credit, entropies = self.base(groups, scores, streams), turn_means(streams["entropy"])
        every = concatenated(h for some in entropies for h in some)
        if not len(every):
            return credit
        low, width = float(every.min()), float(np.ptp(every)) or 1.0
        mean = float(np.exp(-self.sharpness * (every - low) / width).mean())
        factors = [[np.exp(-self.sharpness * (h - low) / width) / mean for h in some] for some in entropies]
        bonuses = [[self._bonus((h - low) / width) for h in some] for some in entropies]
        tops = [[_means(c) for c in some] for some in credit]
        moved = [[a * f + b for a, f, b in zip(*of, strict=True)] for of in zip(tops, factors, bonuses, strict=True)]
        centre = float(concatenated(values for some in moved for values in some).mean())
        return [
            [scale_turns(c, f, b - centre) for c, f, b in zip(*of, strict=True)]
            for of in zip(credit, factors, bonuses, strict=True)
        ]

    def _bonus(self, entropies: Values) -> Values:
        """For the turn after; there is none after the last."""
        after = self.clarity_coef * np.exp(-self.sharpness_next * entropies[1:])
        return np.append(after, 0.0) if len(entropies) else after


def _means(credit: Credit) -> Values:
    return np.array([turn.mean() if len(turn) else 0.0 for turn in credit.tokens], dtype=np.float64)
