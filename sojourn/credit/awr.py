"""Exponential advantage weights, for imitation weighted by how good an action was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from sojourn.config.fields import Kind, Range
from sojourn.credit.turn_gae import TurnGAE
from sojourn.credit.wrapped import Wrapped
from sojourn.errors import ConfigError
from sojourn.protocols import Estimator
from sojourn.types import Credit, Group, Score, Streams, Trajectory, Turn


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

    With `scale`, advantages are first multiplied by the number of that name in `Turn.info`, such as the "balance" that
    the agent `balance_conditioned` was told: the weight is min(exp(balance A / `beta`), `clip`), so that one model
    learns a family of policies (FamO2O: Wang et al. 2023, arXiv:2310.17966, by its authors' code, whose clip is 100).
    """

    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=TurnGAE)
    beta: Annotated[float, Range(above=0)] = 1.0
    clip: Annotated[float, Range(above=0)] = 20.0
    scale: str = ""

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        pairs = zip(groups, self.base(groups, scores, streams), strict=True)
        return [
            [self._weighted(t, credit) for t, credit in zip(group.trajectories, credits, strict=True)]
            for group, credits in pairs
        ]

    def _weighted(self, trajectory: Trajectory, credit: Credit) -> Credit:
        highest = np.log(self.clip)  # bounded before the exponential, which would overflow
        turns = (
            np.exp(np.minimum(tokens.astype(np.float64) * self._scale(turn) / self.beta, highest))
            for turn, tokens in zip(trajectory.turns, credit.tokens, strict=True)
        )
        return replace(credit, tokens=tuple(turn.astype(np.float32) for turn in turns))

    def _scale(self, turn: Turn) -> float:
        if not self.scale:
            return 1.0
        if self.scale not in turn.info:
            raise ConfigError(
                f"awr.scale = '{self.scale}': a turn has the numbers {', '.join(sorted(turn.info)) or 'none'}: "
                "expected one that every turn has, such as 'balance' with agent = {name = 'balance_conditioned'}, and "
                "recorded groups by {name = 'with_balances'}"
            )
        return turn.info[self.scale]
