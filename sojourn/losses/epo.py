"""Entropy, kept within what it has been so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from sojourn.config.registry import Range
from sojourn.protocols import Output, Selected
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class EPO:
    """-coef (H - b P) per token: an entropy bonus, and a penalty P for an entropy H beyond `low` to `high` times its
    mean over all earlier steps (Xu et al. 2025, arXiv:2509.22576, eq. 2-6; version 2).

    P = penalty (max(0, low M - H) + max(0, H - high M)), and b = 1 + exp(-decay k / m) in step k, where m is half of
    `steps`. It averages as the paper does under `aggregate.by = "turn"`, but for trajectories of different numbers of
    turns, which the paper weighs alike. In the first step, without a past, there is no penalty. M is made from -log p
    of what was sampled, whose mean is the entropy. The authors' code penalises by a constant, which has no gradient.
    """

    coef: Annotated[float, Range(0)] = 0.001
    low: Annotated[float, Range(0)] = 0.0
    high: Annotated[float, Range(0)] = 2.0
    penalty: Annotated[float, Range(0)] = 0.1
    decay: Annotated[float, Range(0)] = 3.0
    steps: Annotated[int, Range(1)] = 150
    _past: list[float] = field(default_factory=list, init=False, repr=False, compare=False)

    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})
    zero_at_zero_advantage: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low = {self.low:g} with high = {self.high:g}: expected a low of at most that")

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]:
        """The bounds of this step, and the weight of the penalty; then its own entropy is part of the past."""
        mean, weight = 0.0, 0.0
        if self._past:
            mean = float(np.mean(self._past))
            weight = 1 + math.exp(-self.decay * len(self._past) / max(self.steps // 2, 1))
        if batch.weight.any():
            self._past.append(-float(batch.logprobs[batch.weight > 0].mean()))
        columns = {"epo_mean": mean, "epo_weight": weight}
        return {name: np.full(len(batch), value, dtype=np.float32) for name, value in columns.items()}

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        mean, weight = batch.streams["epo_mean"], batch.streams["epo_weight"]
        beyond = (self.low * mean - out.entropy).clamp(min=0) + (out.entropy - self.high * mean).clamp(min=0)
        loss = -self.coef * (out.entropy - weight * self.penalty * beyond)
        return loss, {"beyond": (beyond.detach() > 0).float() * (weight > 0)}

    def state(self) -> Mapping[str, Any]:
        return {"past": list(self._past)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._past[:] = state["past"]
