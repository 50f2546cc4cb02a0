"""The clipped surrogate with turn-level ratios, whose gradient is divided by the norm of what the clip removes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from sojourn.config.fields import Range
from sojourn.losses.ratios import log_ratio, mean_by, sampler_kl
from sojourn.protocols import PassOutput, SelectedTokens


@dataclass(frozen=True, kw_only=True)
class STPPO:
    """-min(w A, clip(w, 1 - clip_low, 1 + clip_high) A), where w is the geometric mean of a turn's token ratios; its
    gradient is divided by the norm of the gradient of w A at the clipped tokens (Li et al. 2025, arXiv:2511.20718).

    `level = "token"` takes each token's own ratio (S-PPO); with `floor = 0` the gradient is not divided (Turn-PPO, the
    loss `gspo` with `level = "turn"`). The norm is at least `floor`, so that a clip that removes little does not make
    the step larger: we do not know what the authors do there. The source is the abstract, reviews and notes, and some
    notes take the arithmetic mean of a turn's ratios, not the geometric one. Both gradients are those of the whole
    update, before the optimiser's own gradient clipping.
    """

    clip_low: Annotated[float, Range(0, 1)] = 0.2
    clip_high: Annotated[float, Range(0)] = 0.2
    level: Literal["turn", "token"] = "turn"
    floor: Annotated[float, Range(0)] = 1.0
    coef: float = 1.0

    needs = frozenset[str]()
    zero_at_zero_advantage = True
    unverified = "the paper's abstract and notes on it were read, not its equations"

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        gap = log_ratio(out, batch)
        plain, clipped = self._both(gap, batch)
        metrics = {"clip_fraction": (clipped < plain).float(), "kl": sampler_kl(gap)}
        return -self.coef * torch.minimum(plain, clipped), metrics

    @property
    def further_objectives(self) -> tuple[str, ...]:
        return ("left_out",) if self.floor else ()

    def objective(self, name: str, out: PassOutput, batch: SelectedTokens) -> torch.Tensor:
        """Returns what the clip removed from each token's loss: (n,), with gradient; 0 where it removed nothing."""
        plain, clipped = self._both(log_ratio(out, batch), batch)
        return torch.where(clipped < plain, -self.coef * plain, 0.0)

    def divisor(self, norms: Mapping[str, float]) -> float:
        """Returns the norm of the gradient of what was left out, or `floor` where that is greater."""
        return max(norms["left_out"], self.floor)

    def _both(self, gap: torch.Tensor, batch: SelectedTokens) -> tuple[torch.Tensor, torch.Tensor]:
        ratio = (mean_by(gap, batch.turn) if self.level == "turn" else gap).exp()
        return ratio * batch.advantages, ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * batch.advantages
