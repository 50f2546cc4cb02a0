"""The policy gradient without a ratio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from sojourn.losses.ratios import log_ratio, sampler_kl
from sojourn.protocols import Output, Selected


@dataclass(frozen=True, kw_only=True)
class Reinforce:
    """-A log p per token (Williams 1992, section 4): it has no ratio, so it is right only for samples of the current
    weights."""

    coef: float = 1.0

    needs: ClassVar[frozenset[str]] = frozenset()
    zero_at_zero_advantage: ClassVar[bool] = True
    valid_for: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return -self.coef * batch.advantages * out.logprobs, {"kl": sampler_kl(log_ratio(out, batch))}
