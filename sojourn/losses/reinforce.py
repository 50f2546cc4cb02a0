"""The plain policy gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from sojourn.protocols import Output, Selected


@dataclass(frozen=True, kw_only=True)
class Reinforce:
    """-A log p per token (Williams 1992, section 4): no ratio, so only for samples of the current weights."""

    coef: float = 1.0

    needs: ClassVar[frozenset[str]] = frozenset()
    proportional: ClassVar[bool] = True

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        log_ratio = (out.logprobs - batch.logprobs).detach()
        return -self.coef * batch.advantages * out.logprobs, {"kl": log_ratio.exp() - 1 - log_ratio}
