"""Exponential advantage weights, for imitation weighted by how good an action was."""

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


@dataclass(frozen=True, kw_only=True)
class AWR(Wrapped):
    """The weight min(exp(A / `beta`), `clip`) of each token, where A is its advantage by the estimator `base`, for the
    loss `nll` (advantage-weighted regression: Peng et al. 2019, arXiv:1910.00177; policy extraction of implicit
    Q-learning: Kostrikov et al. 2021, arXiv:2110.06169, where 1 / `beta` is the inverse temperature, and the clip 100).

    Every action is imitated, the better ones more, so that the policy stays near the one that acted: it is for recorded
    and replayed groups. The default base is TD(lambda) over turns, which needs a critic, as in the authors' code of
    AWR; that code brings the advantages of the whole buffer to mean 0 and standard deviation 1 first, which is the base
    `whitened` with `level = "turn"` over it. With the base `archer` and the stream `utterance_advantage` it is implicit
    Q-learning.
    """

    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=TurnGAE)
    beta: Annotated[float, Range(above=0)] = 1.0
    clip: Annotated[float, Range(above=0)] = 20.0

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        return [[self._weighted(credit) for credit in group] for group in self.base(groups, scores, streams)]

    def _weighted(self, credit: Credit) -> Credit:
        highest = np.log(self.clip)  # bounded before the exponential, which would overflow
        turns = (np.exp(np.minimum(turn.astype(np.float64) / self.beta, highest)) for turn in credit.tokens)
        return replace(credit, tokens=tuple(turn.astype(np.float32) for turn in turns))
