"""Generalised advantages of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.registry import Range
from sojourn.credit import temporal
from sojourn.credit.relative import concatenated
from sojourn.types import Credit, Score, Trajectory

Share = Annotated[float, Range(0, 1)]


@dataclass(frozen=True, kw_only=True)
class GAE(temporal.CriticEstimator):
    """The generalised advantage of every token (Schulman et al. 2016, arXiv:1506.02438, eq. 16), with `lam` its lambda;
    the critic is asked before each token, and learns the advantage with `critic_lam` plus its value.

    `discount` is for the next turn and `token_discount` for the next token of the same turn: with 1 for the latter this
    is POAD's backup with action decomposition (Wen et al. 2024, arXiv:2405.15821), in which how many tokens an action
    takes changes nothing. A lambda of its own for the critic is VC-PPO's decoupled GAE (Yuan et al. 2025,
    arXiv:2503.01491). With `alpha`, a trajectory of l tokens has the lambda 1 - 1 / (alpha l) instead of `lam`, at
    least 0 (length-adaptive GAE of VAPO: Yue et al. 2025, arXiv:2504.05118). Turns follow each other in their order;
    a trajectory that was cut off goes on with the critic's value after its last token, unless `bootstrap` is off (where
    a limit is part of the task). With `kl_coef` every token pays
    that much of log p - log p_reference, p being the sampler's (Ouyang et al. 2022, arXiv:2203.02155, eq. 2).
    """

    discount: Share = 1.0
    token_discount: Share = 1.0
    lam: Share | None = None  # 0.95
    critic_lam: Share | None = None
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

    def _one(
        self,
        trajectory: Trajectory,
        score: Score,
        values: temporal.PerTurn,
        ahead: temporal.PerTurn,
        reference: temporal.PerTurn = (),
    ) -> Credit:
        left = temporal.bootstrap_value(trajectory, ahead) if self.bootstrap else 0.0
        steps = temporal.token_steps(trajectory, score, values, left, self.discount, self.token_discount)
        if self.kl_coef:
            drawn = concatenated(turn.sample.logprobs.astype(np.float64) for turn in trajectory.turns)
            steps.rewards[:] -= self.kl_coef * (drawn - concatenated(known.astype(np.float64) for known in reference))
        lam = 0.95 if self.lam is None else self.lam
        if self.alpha is not None:
            lam = max(0.0, 1 - 1 / (self.alpha * max(len(steps.values), 1)))
        advantages = steps.advantages(lam)
        learnt = steps.advantages(lam if self.critic_lam is None else self.critic_lam) + steps.values
        return Credit(temporal.split_tokens(trajectory, advantages), temporal.split_tokens(trajectory, learnt))
