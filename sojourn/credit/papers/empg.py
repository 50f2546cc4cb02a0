"""Advantages modulated by the entropy of turns, with a bonus for the clarity of the next turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from sojourn.config.fields import Kind, Range
from sojourn.credit.by_turn import concatenated
from sojourn.credit.grpo import GRPO
from sojourn.credit.relative import Values
from sojourn.credit.wrapped import Wrapped, scale_turns, turn_means, with_tokens
from sojourn.protocols import Estimator
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class EMPG(Wrapped):
    """Another estimator's advantage of each turn, multiplied by exp(-k H) over the step's mean of that factor, plus
    `clarity_coef` times exp(-k' H') of the next turn, minus the mean over all turns of the step (Wang et al. 2025,
    arXiv:2509.09265, eq. 7-12).

    The factor is the paper's self-calibrating gradient scaling, the added term its future clarity bonus. H is the
    turn's mean token entropy, rescaled from 0 for the lowest of the step to 1 for the highest; `sharpness` is the
    paper's k and `sharpness_next` its k'. A group whose returns are equal is no exception: its turns still get the
    bonus. There is no bonus for a last turn, and a turn without tokens does not count.
    """

    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=GRPO)
    sharpness: Annotated[float, Range(0)] = 1.0
    sharpness_next: Annotated[float, Range(0)] = 1.0
    clarity_coef: float = 0.05

    extra_streams = frozenset({"entropy"})

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        credits, entropies = self.base(groups, scores, streams), turn_means(streams["entropy"])
        sampled = with_tokens(streams["entropy"])
        every = _all_of(entropies, sampled)
        if not len(every):
            return credits
        low, width = float(every.min()), float(np.ptp(every)) or 1.0
        mean = float(np.exp(-self.sharpness * (every - low) / width).mean())
        factors = [[np.exp(-self.sharpness * (h - low) / width) / mean for h in group] for group in entropies]
        bonuses = [
            [self._bonus((h - low) / width, of) for h, of in zip(*of_group, strict=True)]
            for of_group in zip(entropies, sampled, strict=True)
        ]
        advantages = [[_turn_advantages(c) for c in group] for group in credits]
        modulated = [
            [a * f + b for a, f, b in zip(*of_group, strict=True)]
            for of_group in zip(advantages, factors, bonuses, strict=True)
        ]
        centre = float(_all_of(modulated, sampled).mean())
        return [
            [scale_turns(c, f, b - centre) for c, f, b in zip(*of_group, strict=True)]
            for of_group in zip(credits, factors, bonuses, strict=True)
        ]

    def _bonus(self, entropies: Values, sampled: NDArray[np.bool_]) -> Values:
        """Returns each turn's bonus for the entropy of the turn that was sampled after it; 0 for the last turn."""
        bonus, at = np.zeros(len(entropies)), np.flatnonzero(sampled)
        bonus[at[:-1]] = self.clarity_coef * np.exp(-self.sharpness_next * entropies[at[1:]])
        return bonus


def _all_of(values: Sequence[Sequence[Values]], sampled: Sequence[Sequence[NDArray[np.bool_]]]) -> Values:
    """Returns the values of all turns of the step that have tokens."""
    pairs = (pair for of_group in zip(values, sampled, strict=True) for pair in zip(*of_group, strict=True))
    return concatenated(of_turns[of] for of_turns, of in pairs)


def _turn_advantages(credit: Credit) -> Values:
    return np.array([turn.mean() if len(turn) else 0.0 for turn in credit.tokens], dtype=np.float64)
