"""The clipped surrogate that keeps a gradient above its clip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch

from sojourn.config.fields import Range
from sojourn.losses.ratios import log_ratio, sampler_kl
from sojourn.protocols import PassOutput, SelectedTokens


@dataclass(frozen=True, kw_only=True)
class AEPO:
    """PPO whose upper bound is (1 + clip_high) r / sg(r), where sg stops the gradient, so that a token above the clip
    keeps a gradient of that size (AEPO: Dong et al. 2025, arXiv:2510.14545, "Entropy Clipping-Balanced Mechanism").

    The authors' code has the dual clip of PPO besides (the loss of a token with negative advantage is at most -3 A),
    which is left out here, as in the paper's objective. The paper's advantage is the estimator `aepo`.
    """

    clip_low: Annotated[float, Range(0, 1)] = 0.2
    clip_high: Annotated[float, Range(0)] = 0.2
    coef: float = 1.0

    needs = frozenset[str]()
    zero_at_zero_advantage = True

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        log_r = log_ratio(out, batch)
        ratio = log_r.exp()
        above = (1 + self.clip_high) * (1 + log_r - log_r.detach())  # r / sg(r) to first order, finite for any r
        clipped_ratio = torch.where(ratio > 1 + self.clip_high, above, ratio.clamp(min=1 - self.clip_low))
        unclipped, clipped = ratio * batch.advantages, clipped_ratio * batch.advantages
        metrics = {"clip_fraction": (clipped < unclipped).float(), "kl": sampler_kl(log_r)}
        return -self.coef * torch.minimum(unclipped, clipped), metrics
