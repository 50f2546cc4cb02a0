"""The clipped surrogate objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch

from sojourn.config.fields import Range
from sojourn.losses.ratios import log_ratio, sampler_kl
from sojourn.protocols import PassOutput, SelectedTokens


@dataclass(frozen=True, kw_only=True)
class PPO:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) per token (Schulman et al. 2017, arXiv:1707.06347, eq. 7).

    r is the ratio of the trained policy's probability to the sampler's, so that no pass of an old policy is needed, and
    A the advantage. `clip_high` above `clip_low` is the clip-higher of DAPO (Yu et al. 2025, arXiv:2503.14476, eq. 10).
    With `dual_clip` c, the loss of a token with negative advantage is at most -c A, however large r is (Ye et al. 2019,
    arXiv:1912.09729, eq. 5). `coef` multiplies the loss.
    """

    clip_low: Annotated[float, Range(0, 1)] = 0.2
    clip_high: Annotated[float, Range(0)] = 0.2
    dual_clip: Annotated[float, Range(above=1)] | None = None
    coef: float = 1.0

    needs = frozenset[str]()
    zero_at_zero_advantage = True

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        log_r = log_ratio(out, batch)
        ratio = log_r.exp()
        unclipped = ratio * batch.advantages
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * batch.advantages
        metrics = {"clip_fraction": (clipped < unclipped).float(), "kl": sampler_kl(log_r)}
        objective = torch.minimum(unclipped, clipped)
        if self.dual_clip is not None:
            bounded = torch.maximum(objective, self.dual_clip * batch.advantages)
            objective = torch.where(batch.advantages < 0, bounded, objective)
        return -self.coef * objective, metrics
