"""Generalised advantages of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.fields import Range
from sojourn.credit import temporal
from sojourn.credit.by_turn import concatenated
from sojourn.types import Credit, Score, Trajectory

Fraction = Annotated[float, Range(0, 1)]


@dataclass(frozen=True, kw_only=True)
class GAE(temporal.CriticEstimator):
    """Generalised advantage estimate of every token (Schulman et al. 2016, arXiv:1506.02438, eq. 16), where `lam` is
    lambda.

    The critic is evaluated before each token; its target is the advantage computed with `critic_lam` plus its value.
    `discount` is the factor of the next turn and `token_discount` that of the next token of the same turn: with 1 for
    the latter this is POAD's backup with action decomposition (Wen et al. 2024, arXiv:2405.15821), in which the number
    of tokens of an action changes nothing. A `critic_lam` other than `lam` is the decoupled GAE of VC-PPO (Yuan et al.
    2025, arXiv:2503.01491). With `alpha`, a trajectory of l tokens has the lambda 1 - 1 / (alpha l), at least 0,
    instead of `lam` (length-adaptive GAE of VAPO: Yue et al. 2025, arXiv:2504.05118). Turns follow each other in their
    order. A truncated trajectory continues with the critic's value after its last token, unless `bootstrap` is off
    (where a limit is part of the task). With `kl_coef`, `kl_coef` (log p - log p_reference) is subtracted from the
    reward of every token, where p is the sampler's probability (Ouyang et al. 2022, arXiv:2203.02155, eq. 2).
    """

    discount: Fraction = 1.0
    token_discount: Fraction = 1.0
    lam: Fraction | None = None  # None: 0.95, or as `alpha` decides
    critic_lam: Fraction | None = None  # None: the same as for the advantage
    alpha: Annotated[float, Range(above=0)] | None = None
    kl_coef: Annotated[float, Range(0)] = 0.0
    bootstrap: bool = True

    def __post_init__(self) -> None:
        if self.alpha is not None and self.lam is not None:
            raise ValueError(
                "alpha decides the lambda of each trajectory, so lam would change nothing: keep one of them"
            )

    @property
    def extra_streams(self) -> tuple[str, ...]:
        return ("ref_logprobs",) if self.kl_coef else ()

    def _credit(
        self,
        trajectory: Trajectory,
        score: Score,
        values: temporal.PerTurn,
        next_values: temporal.PerTurn,
        reference: temporal.PerTurn = (),
    ) -> Credit:
        bootstrap = temporal.bootstrap_value(trajectory, next_values) if self.bootstrap else 0.0
        steps = temporal.token_steps(trajectory, score, values, bootstrap, self.discount, self.token_discount)
        if self.kl_coef:
            logprobs = concatenated(turn.sample.logprobs.astype(np.float64) for turn in trajectory.turns)
            ref_logprobs = concatenated(turn.astype(np.float64) for turn in reference)
            steps.rewards[:] -= self.kl_coef * (logprobs - ref_logprobs)
        lam = 0.95 if self.lam is None else self.lam
        if self.alpha is not None:
            lam = max(0.0, 1 - 1 / (self.alpha * max(len(steps.values), 1)))
        advantages = steps.advantages(lam)
        targets = steps.advantages(lam if self.critic_lam is None else self.critic_lam) + steps.values
        return Credit(temporal.split_tokens(trajectory, advantages), temporal.split_tokens(trajectory, targets))
