"""The entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from sojourn.protocols import PassOutput, SelectedTokens


@dataclass(frozen=True, kw_only=True)
class Entropy:
    """-`coef` times the entropy, in nats, of each token's distribution (Mnih et al. 2016, arXiv:1602.01783, sec. 4)."""

    coef: float = 0.01

    needs = frozenset({"entropy"})
    zero_at_zero_advantage = False
    valid_for = frozenset({"lag", "updates", "unsampled"})

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return -self.coef * out.entropy, {}
