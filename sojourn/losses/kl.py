"""The penalty for leaving the reference policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from sojourn.protocols import Output, Selected


@dataclass(frozen=True, kw_only=True)
class KL:
    """`coef` times the k3 estimate of KL(policy || reference) per token (Schulman 2020, "Approximating KL divergence").

    k3 = exp(d) - 1 - d with d = log p_reference - log p, as in GRPO (Shao et al. 2024, arXiv:2402.03300, eq. 4). Its
    value is unbiased under the policy, its gradient is not that of the KL; small coefficients hide the difference.
    """

    coef: float = 0.01

    needs: ClassVar[frozenset[str]] = frozenset({"ref_logprobs"})
    proportional: ClassVar[bool] = False

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        gap = batch.streams["ref_logprobs"] - out.logprobs
        k3 = gap.exp() - 1 - gap
        return self.coef * k3, {"ref_kl": k3.detach()}
