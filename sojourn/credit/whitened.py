"""Advantages whitened over the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np

from sojourn.config.fields import Kind, Range
from sojourn.credit.by_turn import concatenated
from sojourn.credit.grpo import GRPO
from sojourn.credit.wrapped import Wrapped
from sojourn.finite import differ
from sojourn.protocols import Estimator
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class Whitened(Wrapped):
    """Another estimator's advantages, minus their mean over all tokens of the step (with `shift_mean`), divided by
    their standard deviation + `epsilon`, then clipped to [-`clip`, `clip`] (advantage normalisation and clipping of
    PPO-max: Zheng et al. 2023, arXiv:2307.04964, appendix B.1).

    With `level = "turn"` mean and standard deviation are over turns, each of which counts once, however many tokens it
    has: this is for estimators with one advantage per environment step, as in the authors' code of VL-DAC (Bredis et
    al. 2025, arXiv:2508.04280). A turn whose tokens differ counts with their mean, and a turn without tokens does not
    count. The standard deviation is the population's; that code takes the sample's. Where all are equal, but for
    rounding to 32 bits, nothing is divided.
    """

    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=GRPO)
    level: Literal["token", "turn"] = "token"
    shift_mean: bool = True
    clip: Annotated[float, Range(above=0)] | None = None
    epsilon: Annotated[float, Range(above=0)] = 1e-6

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        credits = self.base(groups, scores, streams)
        turns = [turn for group in credits for c in group for turn in c.tokens if len(turn)]
        if self.level == "turn":
            turns = [turn.mean(keepdims=True, dtype=np.float64) for turn in turns]
        every = concatenated(turns)
        if not len(every):
            return credits
        mean = float(every.mean()) if self.shift_mean else 0.0
        scale = 1 / (float(every.std()) + self.epsilon) if differ(every) else 1.0
        return [[self._whitened(c, mean, scale) for c in group] for group in credits]

    def _whitened(self, credit: Credit, mean: float, scale: float) -> Credit:
        bound = np.inf if self.clip is None else self.clip
        turns = (np.clip((turn - mean) * scale, -bound, bound).astype(np.float32) for turn in credit.tokens)
        return replace(credit, tokens=tuple(turns))
