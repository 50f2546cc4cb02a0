"""A soft gate in the place of the clip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from sojourn.config.registry import Range
from sojourn.losses.ratios import log_ratio, sampler_kl
from sojourn.protocols import Output, Selected


@dataclass(frozen=True, kw_only=True)
class SAPO:
    """-(4 / t) sigmoid(t (r - 1)) A per token, t by the advantage's sign (Gao et al. 2025, arXiv:2511.20347).

    At ratio 1 the gradient is that of REINFORCE, and it fades away from there, faster for negative advantages.
    """

    temperature: Annotated[float, Range(above=0)] = 1.0
    temperature_negative: Annotated[float, Range(above=0)] = 1.05
    coef: float = 1.0

    needs: ClassVar[frozenset[str]] = frozenset()
    zero_at_zero_advantage: ClassVar[bool] = True

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        gap = log_ratio(out, batch)
        heat = torch.where(batch.advantages > 0, self.temperature, self.temperature_negative)
        gate = torch.sigmoid(heat * (gap.exp() - 1))
        metrics = {"gate": (4 * gate * (1 - gate)).detach(), "kl": sampler_kl(gap)}
        return -self.coef * 4 / heat * gate * batch.advantages, metrics
