"""The policy gradient without a ratio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from sojourn.losses.ratios import log_ratio, sampler_kl
from sojourn.protocols import PassOutput, SelectedTokens


@dataclass(frozen=True, kw_only=True)
class Reinforce:
    """-A log p per token (Williams 1992, section 4): it has no ratio, so it is right only for samples of the current
    weights."""

    coef: float = 1.0

    needs = frozenset[str]()
    zero_at_zero_advantage = True
    valid_for = frozenset[str]()

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return -self.coef * batch.advantages * out.logprobs, {"kl": sampler_kl(log_ratio(out, batch))}
