"""Another estimator, for rewards with a stream's added to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from sojourn.config.registry import Kind, Text
from sojourn.credit.reinforce import Reinforce
from sojourn.credit.wrapped import Wrapped
from sojourn.types import Credit, FloatArray, Group, Score, Streams

STREAM = Text(r"[a-z_]+", "the name of a stream")


@dataclass(frozen=True, kw_only=True)
class Process(Wrapped):
    """`outcome` times the reward of each turn plus `coef` times what the stream `by` says of the turn, added up over
    its tokens; then another estimator, which should look at turns (fused rewards of SPA-RL: Wang et al. 2025,
    arXiv:2505.20732; intrinsic rewards: Pathak et al. 2017, arXiv:1705.05363).
    """

    stream: Annotated[str, STREAM] = "progress"
    coef: float = 1.0
    outcome_coef: float = 1.0
    base: Annotated[Any, Kind("estimator")] = field(default_factory=Reinforce)

    @property
    def needs(self) -> frozenset[str]:
        return self.base.needs | {self.stream}

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        paid = [
            [self._paid(*of) for of in zip(judged, known, strict=True)]
            for judged, known in zip(scores, streams[self.stream], strict=True)
        ]
        return self.base(groups, paid, streams)

    def _paid(self, score: Score, known: Sequence[FloatArray]) -> Score:
        more = np.array([float(turn.sum()) for turn in known], dtype=np.float32)
        return replace(score, turns=(self.outcome_coef * score.turns + self.coef * more).astype(np.float32))
