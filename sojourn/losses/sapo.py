"""A soft gate instead of the clip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch

from sojourn.config.fields import Range
from sojourn.losses.ratios import log_ratio, sampler_kl
from sojourn.protocols import PassOutput, SelectedTokens


@dataclass(frozen=True, kw_only=True)
class SAPO:
    """-(4 / t) sigmoid(t (r - 1)) A per token, where t is `temperature` for positive advantages and
    `temperature_negative` for others (Gao et al. 2025, arXiv:2511.20347).

    At r = 1 the gradient is that of REINFORCE; away from there it fades, faster for negative advantages.
    """

    temperature: Annotated[float, Range(above=0)] = 1.0
    temperature_negative: Annotated[float, Range(above=0)] = 1.05
    coef: float = 1.0

    needs = frozenset[str]()
    zero_at_zero_advantage = True

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        log_r = log_ratio(out, batch)
        temperature = torch.where(batch.advantages > 0, self.temperature, self.temperature_negative)
        gate = torch.sigmoid(temperature * (log_r.exp() - 1))
        metrics = {"gate": (4 * gate * (1 - gate)).detach(), "kl": sampler_kl(log_r)}
        return -self.coef * 4 / temperature * gate * batch.advantages, metrics
