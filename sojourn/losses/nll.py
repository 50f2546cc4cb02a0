"""Negative log-likelihood, for imitation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from sojourn.protocols import Output, Selected


@dataclass(frozen=True, kw_only=True)
class NLL:
    """-A log p per token: behaviour cloning where the advantage is 1 for every token, as with `constant`."""

    coef: float = 1.0

    needs: ClassVar[frozenset[str]] = frozenset()
    zero_at_zero_advantage: ClassVar[bool] = True
    valid_for: ClassVar[frozenset[str]] = frozenset({"lag", "updates", "unsampled"})

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return -self.coef * batch.advantages * out.logprobs, {"nll": -out.logprobs.detach()}
