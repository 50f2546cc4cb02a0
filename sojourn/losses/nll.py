"""Negative log-likelihood, for imitation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from sojourn.protocols import PassOutput, SelectedTokens


@dataclass(frozen=True, kw_only=True)
class NLL:
    """-A log p per token: behaviour cloning where the advantage is 1 for every token, as with `constant`."""

    coef: float = 1.0

    needs = frozenset[str]()
    zero_at_zero_advantage = True
    valid_for = frozenset({"lag", "updates", "unsampled"})

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return -self.coef * batch.advantages * out.logprobs, {"nll": -out.logprobs.detach()}
