"""Targets of a conservative Bellman operator, and credit for what succeeded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.fields import Range
from sojourn.credit import temporal
from sojourn.credit.by_turn import concatenated
from sojourn.types import Credit, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class BCoder(temporal.CriticEstimator):
    """Target r + discount (V(s') + log p(a') - max log p) for each token's Q, where a' is the next token that the
    weights of the stage's beginning would take greedily (conservative Bellman operator of B-Coder: Yu et al. 2023,
    arXiv:2310.03173, eq. 14-15).

    This is the value of following those weights greedily, so that no token is overestimated for lack of data. It goes
    with the loss `bcoder`, whose Q learns this target and whose policy follows Q. The advantage is 1 for all tokens of
    a trajectory whose return is above 0, else 0: such trajectories stand in for the programs written by people, which
    are half of the paper's data. There a cap keeps V below the greatest return (appendix G.1); here nothing does.
    """

    discount: Annotated[float, Range(0, 1)] = 0.999

    @property
    def extra_streams(self) -> tuple[str, ...]:
        return ("greedy_gap",)

    def _credit(
        self,
        trajectory: Trajectory,
        score: Score,
        values: temporal.PerTurn,
        next_values: temporal.PerTurn,
        gaps: temporal.PerTurn,
    ) -> Credit:
        bootstrap = temporal.bootstrap_value(trajectory, next_values)
        steps = temporal.token_steps(trajectory, score, values, bootstrap, self.discount, self.discount)
        gap = concatenated(turn.astype(np.float64) for turn in gaps)
        following = np.append(steps.values + gap, steps.bootstrap)[1:]
        targets = temporal.split_tokens(trajectory, steps.rewards + steps.discounts * following)
        return Credit(Credit.uniform(trajectory, float(score.total > 0)).tokens, targets)
