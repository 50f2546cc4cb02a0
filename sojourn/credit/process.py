"""Process rewards from a stream, for another estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from sojourn.config.fields import Kind, Text
from sojourn.credit.reinforce import Reinforce
from sojourn.credit.wrapped import Wrapped
from sojourn.protocols import Estimator
from sojourn.types import Credit, FloatArray, Group, Score, Streams

STREAM = Text(r"[a-z_]+", "the name of a stream")


@dataclass(frozen=True, kw_only=True)
class Process(Wrapped):
    """Another estimator, for rewards that are `outcome_coef` times the reward of each turn plus `coef` times the sum
    over the turn's tokens of the process reward in `stream` (fused rewards of SPA-RL: Wang et al. 2025,
    arXiv:2505.20732; intrinsic rewards: Pathak et al. 2017, arXiv:1705.05363).

    The base should use the rewards of turns, not only their sum over the trajectory.
    """

    stream: Annotated[str, STREAM] = "progress"
    coef: float = 1.0
    outcome_coef: float = 1.0
    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=Reinforce)

    @property
    def needs(self) -> frozenset[str]:
        return self.base.needs | {self.stream}

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        fused = [
            [self._fused(score, rewards) for score, rewards in zip(of_group, stream, strict=True)]
            for of_group, stream in zip(scores, streams[self.stream], strict=True)
        ]
        return self.base(groups, fused, streams)

    def _fused(self, score: Score, process_rewards: Sequence[FloatArray]) -> Score:
        sums = np.array([float(turn.sum()) for turn in process_rewards], dtype=np.float32)
        turns = (self.outcome_coef * score.turns + self.coef * sums).astype(np.float32)
        outcome = score.result if len(turns) else self.outcome_coef * score.total  # which one that never acted has
        return replace(score, turns=turns, outcome=outcome)
