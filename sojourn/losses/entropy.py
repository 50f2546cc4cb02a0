"""The entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from sojourn.protocols import Output, Selected


@dataclass(frozen=True, kw_only=True)
class Entropy:
    """-`coef` times the entropy of each token's distribution, in nats (Williams and Peng 1991; A3C, arXiv:1602.01783)."""

    coef: float = 0.01

    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})
    proportional: ClassVar[bool] = False

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        assert out.entropy is not None  # the trainer computes what `needs` names
        return -self.coef * out.entropy, {}
