"""Advantages modulated by the entropy of turns, relative to the group."""

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
class AEM(Wrapped):
    """Another estimator's advantage of each turn, multiplied by exp(-`sharpness` H) over the group's mean of that
    factor, where H is the normalised entropy of the turn (adaptive entropy modulation: Zhao et al. 2026,
    arXiv:2605.00425).

    H is the turn's mean token entropy, rescaled from 0 for the lowest of the group to 1 for the highest. Where the
    highest and the lowest differ by less than `min_entropy_range` nats, nothing changes. A turn without tokens does not
    count. The source is an account of the paper, which gives this rule, both defaults included, without the numbers of
    its equations.
    """

    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=GRPO)
    sharpness: Annotated[float, Range(0)] = 1.0
    min_entropy_range: Annotated[float, Range(0)] = 0.1

    extra_streams = frozenset({"entropy"})
    unverified = "the paper's abstract and an account of its rule were read, not its text"

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        credits, entropies = self.base(groups, scores, streams), turn_means(streams["entropy"])
        factors = map(self._factors, entropies, with_tokens(streams["entropy"]))
        return [
            [scale_turns(c, f) for c, f in zip(of_group, of_turns, strict=True)]
            for of_group, of_turns in zip(credits, factors, strict=True)
        ]

    def _factors(self, entropies: Sequence[Values], sampled: Sequence[NDArray[np.bool_]]) -> list[Values]:
        """Returns the factor of each turn of the group: (T,) per trajectory."""
        every = concatenated(h[of] for h, of in zip(entropies, sampled, strict=True))
        if not len(every) or np.ptp(every) < self.min_entropy_range or np.ptp(every) == 0:
            return [np.ones_like(h) for h in entropies]
        low, width = every.min(), np.ptp(every)
        mean = np.exp(-self.sharpness * (every - low) / width).mean()
        return [np.exp(-self.sharpness * (h - low) / width) / mean for h in entropies]
