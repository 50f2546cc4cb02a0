"""The KL penalty towards the reference policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from sojourn.protocols import PassOutput, SelectedTokens

LARGEST = 20.0  # exponent of a ratio: e^20 is 5e8


@dataclass(frozen=True, kw_only=True)
class KL:
    """`coef` times an estimate of KL(policy || reference) per token (Schulman 2020, "Approximating KL divergence").

    With d = log p - log p_reference, `kl_estimator` is k1 = d, k2 = d^2 / 2, or k3 = exp(-d) - 1 + d, as in GRPO (Shao
    et al. 2024, arXiv:2402.03300, eq. 4). The gradients of these losses are not what the estimates suggest: on average
    over samples of the policy, that of k2 is the gradient of KL(policy || reference), that of k3 the gradient of
    KL(reference || policy), and that of k1 is 0, so that k1 only adds noise here: it belongs in the reward, as in the
    estimator `kl_reward`. In k3 a d below -20, as of tokens that the policy would not sample, counts as -20 in exp(-d).
    """

    coef: float = 0.01
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"

    needs = frozenset({"ref_logprobs"})
    zero_at_zero_advantage = False
    valid_for = frozenset({"lag", "updates", "unsampled"})

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        estimate = kl_estimate(out.logprobs - batch.streams["ref_logprobs"], self.kl_estimator)
        return self.coef * estimate, {"ref_kl": estimate.detach()}


def kl_estimate(log_r: torch.Tensor, kl_estimator: str) -> torch.Tensor:
    """Returns the estimate of KL(p || p_reference) at tokens drawn from p, from log p - log p_reference."""
    if kl_estimator == "k1":
        return log_r
    return log_r.square() / 2 if kl_estimator == "k2" else (-log_r).clamp(max=LARGEST).exp() - 1 + log_r
