"""The penalty for leaving the reference policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from sojourn.protocols import Output, Selected


@dataclass(frozen=True, kw_only=True)
class KL:
    """`coef` times an estimate of KL(policy || reference) per token (Schulman 2020, "Approximating KL divergence").

    With d = log p - log p_reference: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d, as in GRPO (Shao et al. 2024,
    arXiv:2402.03300, eq. 4). As losses they are not what they are as estimates: on-policy, the gradient of k2 is that
    of the KL, that of k3 is that of the KL the other way round to first order, and that of k1 is 0 on average (so it is
    noise here, and belongs in the reward: the estimator `kl_reward`).
    """

    coef: float = 0.01
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"

    needs: ClassVar[frozenset[str]] = frozenset({"ref_logprobs"})
    zero_at_zero_advantage: ClassVar[bool] = False
    valid_for: ClassVar[frozenset[str]] = frozenset({"lag", "updates", "unsampled"})

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        estimate = estimated(out.logprobs - batch.streams["ref_logprobs"], self.kl_estimator)
        return self.coef * estimate, {"ref_kl": estimate.detach()}


def estimated(gap: torch.Tensor, form: str) -> torch.Tensor:
    """Of log p - log p_reference, at tokens drawn from p."""
    if form == "k1":
        return gap
    return gap.square() / 2 if form == "k2" else (-gap).exp() - 1 + gap
