"""Generalised advantages of turns, then of the tokens within each turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.fields import Range
from sojourn.credit import temporal
from sojourn.credit.relative import Values
from sojourn.types import Credit, Score, Trajectory

Fraction = Annotated[float, Range(0, 1)]


@dataclass(frozen=True, kw_only=True)
class BilevelGAE(temporal.CriticEstimator):
    """Generalised advantage estimates of the turns, then of the tokens within each turn, whose last token has the
    turn's advantage (Bi-Level GAE of VAGEN: Wang et al. 2025, arXiv:2510.16907).

    A turn's value is the critic's before its last token, as in the authors' code. `discount` and `lam` are for the next
    turn, `token_discount` and `token_lam` for the next token of the same turn. The critic's target is the advantage
    plus its value, for each token. A truncated trajectory continues with the critic's value if `bootstrap` is on. A
    turn without a reward is a turn all the same (in the code of RAGEN it is merged with the next). The KL penalty,
    which the paper subtracts from the reward of every token, is the estimator `kl_reward`.
    """

    discount: Fraction = 0.95
    lam: Fraction = 1.0
    token_discount: Fraction = 1.0
    token_lam: Fraction = 1.0
    bootstrap: bool = True

    def _credit(
        self, trajectory: Trajectory, score: Score, values: temporal.PerTurn, next_values: temporal.PerTurn
    ) -> Credit:
        bootstrap = temporal.bootstrap_value(trajectory, next_values) if self.bootstrap else 0.0
        turns = temporal.turn_steps(score, [v[-1:] for v in values], bootstrap, self.discount).advantages(self.lam)
        per_turn = [self._within_turn(v.astype(np.float64), turn) for v, turn in zip(values, turns, strict=True)]
        tokens = tuple(advantages.astype(np.float32) for advantages in per_turn)
        return Credit(tokens, tuple(a + v for a, v in zip(tokens, values, strict=True)))

    def _within_turn(self, values: Values, turn_advantage: float) -> Values:
        """Returns the advantages of a turn's tokens, of which the last has the turn's advantage: (A,)."""
        if not len(values):
            return values
        rewards = np.zeros(len(values))
        rewards[-1] = turn_advantage + values[-1]
        discounts = np.full(len(values), self.token_discount)
        return temporal.Steps(rewards, values, discounts, 0.0).advantages(self.token_lam)
