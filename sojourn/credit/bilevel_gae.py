"""Generalised advantages of turns, then of the tokens within each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.registry import Range
from sojourn.credit import temporal
from sojourn.credit.relative import Values
from sojourn.types import Credit, Score, Trajectory

Share = Annotated[float, Range(0, 1)]


@dataclass(frozen=True, kw_only=True)
class BilevelGAE(temporal.CriticEstimator):
    """The generalised advantage of turns, then within each turn that of its tokens, the last of which has the turn's
    (Bi-Level GAE of VAGEN: Wang et al. 2025, arXiv:2510.16907).

    A turn's value is the critic's before its last token, as in the authors' code, and `discount` and `lam` are for the
    next turn, `token_discount` and `token_lam` for the next token of the same. The critic learns each advantage plus
    its value, and where a trajectory was cut off, `bootstrap` lets it go on with the critic's. A turn that was paid
    nothing is a turn all the same (in the code of RAGEN it runs into the next). The penalty for leaving the reference,
    which the paper pays at every token, is the estimator `kl_reward`'s.
    """

    discount: Share = 0.95
    lam: Share = 1.0
    token_discount: Share = 1.0
    token_lam: Share = 1.0
    bootstrap: bool = True

    def _one(self, trajectory: Trajectory, score: Score, values: temporal.PerTurn, ahead: temporal.PerTurn) -> Credit:
        left = temporal.bootstrap_value(trajectory, ahead) if self.bootstrap else 0.0
        turns = temporal.turn_steps(score, [v[-1:] for v in values], left, self.discount).advantages(self.lam)
        found = [self._within(v.astype(np.float64), turn) for v, turn in zip(values, turns, strict=True)]
        tokens = tuple(a.astype(np.float32) for a in found)
        return Credit(tokens, tuple(a + v for a, v in zip(tokens, values, strict=True)))

    def _within(self, values: Values, last: float) -> Values:
        """The advantages of a turn's tokens, of which the last has the turn's."""
        if not len(values):
            return values
        paid = np.zeros(len(values))
        paid[-1] = last + values[-1]
        discounts = np.full(len(values), self.token_discount)
        return temporal.Steps(paid, values, discounts, 0.0).advantages(self.token_lam)
