"""Advantages that grow with the entropy of their token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from sojourn.config.fields import Kind, Range
from sojourn.credit.grpo import GRPO
from sojourn.credit.wrapped import Wrapped
from sojourn.protocols import Estimator
from sojourn.types import Credit, FloatArray, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class AEPO(Wrapped):
    """Another estimator's advantage of each token, multiplied by 1 + `entropy_coef` z, where z is the token's entropy
    standardised over the step (entropy-aware advantage of AEPO: Dong et al. 2025, arXiv:2510.14545, "Entropy-aware
    Advantage Estimation").

    The factor is never below 0, so that no advantage changes its sign. The standard deviation is the sample's, as in
    the authors' code, and over the whole step. The paper's clipping is the loss `aepo`.
    """

    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=GRPO)
    entropy_coef: Annotated[float, Range(0)] = 0.2

    extra_streams = frozenset({"entropy"})

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        credits, entropy = self.base(groups, scores, streams), streams["entropy"]
        every = np.concatenate([np.zeros(0), *(turn for group in entropy for turns in group for turn in turns)])
        if len(every) < 2 or np.ptp(every) == 0:
            return credits
        mean, std = float(every.mean()), float(every.std(ddof=1))

        def factor(values: FloatArray) -> FloatArray:
            return np.maximum(1 + self.entropy_coef * (values - mean) / std, 0).astype(np.float32)

        return [
            [
                replace(c, tokens=tuple(turn * factor(h) for turn, h in zip(c.tokens, turns, strict=True)))
                for c, turns in zip(of_group, group_entropy, strict=True)
            ]
            for of_group, group_entropy in zip(credits, entropy, strict=True)
        ]
