"""What a conservative Bellman operator says each token is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.registry import Range
from sojourn.credit import temporal
from sojourn.credit.relative import concatenated
from sojourn.types import Credit, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class BCoder(temporal.CriticEstimator):
    """r + discount (V(s') + log p(a') - max log p) for each token, as what its Q is to be, where a' is what the
    weights that the stage began with would say next (conservative Bellman operator of B-Coder: Yu et al. 2023,
    arXiv:2310.03173, eq. 14-15): the value of following them greedily, so no token is overrated for lack of data.

    It goes with the loss `bcoder`, which has the Q that learns this, and whose policy follows it. The credit is 1 for
    all tokens of a trajectory whose return is above 0, else 0: such trajectories stand in for the programs that people
    wrote, which half of the paper's data is. There a cap keeps V below the greatest return (appendix G.1); here nothing
    does.
    """

    discount: Annotated[float, Range(0, 1)] = 0.999

    @property
    def extra_streams(self) -> tuple[str, ...]:
        return ("greedy_gap",)

    def _one(
        self,
        trajectory: Trajectory,
        score: Score,
        values: temporal.PerTurn,
        ahead: temporal.PerTurn,
        gaps: temporal.PerTurn,
    ) -> Credit:
        left = temporal.bootstrap_value(trajectory, ahead)
        steps = temporal.token_steps(trajectory, score, values, left, self.discount, self.discount)
        gap = concatenated(turn.astype(np.float64) for turn in gaps)
        following = np.append(steps.values + gap, steps.bootstrap)[1:]
        targets = temporal.split_tokens(trajectory, steps.rewards + steps.discounts * following)
        return Credit(Credit.uniform(trajectory, float(score.total > 0)).tokens, targets)
