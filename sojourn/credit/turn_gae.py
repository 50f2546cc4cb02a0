"""Generalised advantages of turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sojourn.config.registry import Range
from sojourn.credit import temporal
from sojourn.types import Credit, Score, Trajectory

Share = Annotated[float, Range(0, 1)]


@dataclass(frozen=True, kw_only=True)
class TurnGAE(temporal.CriticEstimator):
    """The generalised advantage of each turn, for all of its tokens; the critic is asked once a turn, before its first
    token, and learns the advantage with `critic_lam` plus its value (turn-level GAE of ERA: Chen et al. 2025,
    arXiv:2510.12693; step-level value of VL-DAC: Bredis et al. 2025, arXiv:2508.04280, eq. 3-4).

    With `lam = 1` it is the return less the critic's value, as in Odysseus (2026, arXiv:2605.00347, section C.1). A
    trajectory that was cut off goes on with the critic's value after its last token; in the authors' codes it does not,
    as without `bootstrap`. Their advantages are brought to mean 0 and deviation 1 over the step: that is the estimator
    `whitened`, with `by = "turn"` in VL-DAC.
    """

    discount: Share = 0.99
    lam: Share = 0.95
    critic_lam: Share | None = None
    bootstrap: bool = True

    def _one(self, trajectory: Trajectory, score: Score, values: temporal.PerTurn, ahead: temporal.PerTurn) -> Credit:
        left = temporal.bootstrap_value(trajectory, ahead) if self.bootstrap else 0.0
        steps = temporal.turn_steps(score, values, left, self.discount)
        advantages = steps.advantages(self.lam)
        learnt = steps.advantages(self.lam if self.critic_lam is None else self.critic_lam)
        targets = temporal.at_first_token(trajectory, learnt + steps.values)
        return Credit(Credit.per_turn(trajectory, advantages).tokens, targets)
