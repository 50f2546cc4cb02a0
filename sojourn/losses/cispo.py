"""Clipped importance weights on the policy gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch

from sojourn.config.fields import Range
from sojourn.losses.ratios import log_ratio, sampler_kl
from sojourn.protocols import PassOutput, SelectedTokens


@dataclass(frozen=True, kw_only=True)
class CISPO:
    """-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log p per token, where sg stops the gradient (MiniMax 2025,
    arXiv:2506.13585, eq. 4-5).

    Clipping bounds the weight of a token and removes the gradient of none, so that the policy also learns from rare
    words that start a reflection. As in the paper there is no lower bound by default.
    """

    clip_low: Annotated[float, Range(0, 1)] = 1.0
    clip_high: Annotated[float, Range(0)] = 4.0
    coef: float = 1.0

    needs = frozenset[str]()
    zero_at_zero_advantage = True

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        log_r = log_ratio(out, batch)
        ratio = log_r.detach().exp()
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        metrics = {"clip_fraction": (weight != ratio).float(), "kl": sampler_kl(log_r)}
        return -self.coef * weight * batch.advantages * out.logprobs, metrics
