"""Generalised advantages of turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sojourn.config.fields import Range
from sojourn.credit import temporal
from sojourn.types import Credit, Score, Trajectory

Fraction = Annotated[float, Range(0, 1)]


@dataclass(frozen=True, kw_only=True)
class TurnGAE(temporal.CriticEstimator):
    """Generalised advantage estimate of each turn, for all of its tokens, from the critic's value before the turn's
    first token (turn-level GAE of ERA: Chen et al. 2025, arXiv:2510.12693; step-level value of VL-DAC: Bredis et al.
    2025, arXiv:2508.04280, eq. 3-4).

    The critic's target, at that token, is the advantage computed with `critic_lam` plus its value. With `lam = 1` the
    advantage is the return minus the critic's value, as in Odysseus (2026, arXiv:2605.00347, section C.1). A truncated
    trajectory continues with the critic's value after its last token; in the authors' codes it does not, which is
    `bootstrap = false`. They bring the advantages to mean 0 and standard deviation 1 over the step: that is the
    estimator `whitened`, with `level = "turn"` for VL-DAC.
    """

    discount: Fraction = 0.99
    lam: Fraction = 0.95
    critic_lam: Fraction | None = None  # None: `lam`
    bootstrap: bool = True

    def _credit(
        self, trajectory: Trajectory, score: Score, values: temporal.PerTurn, next_values: temporal.PerTurn
    ) -> Credit:
        bootstrap = temporal.bootstrap_value(trajectory, next_values) if self.bootstrap else 0.0
        steps = temporal.turn_steps(score, values, bootstrap, self.discount)
        advantages = steps.advantages(self.lam)
        targets = steps.advantages(self.lam if self.critic_lam is None else self.critic_lam) + steps.values
        return Credit(Credit.per_turn(trajectory, advantages).tokens, temporal.at_first_token(trajectory, targets))
