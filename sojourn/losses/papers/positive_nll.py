"""Imitation of successful trajectories beside the policy loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from sojourn.config.fields import Range
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class PositiveNLL:
    """`coef` times -log p of each token of a successful trajectory, averaged over such tokens alone (the loss on
    positive examples of VAPO: Yue et al. 2025, arXiv:2504.05118, whose mu of 0.1 is `coef`).

    It is used together with a policy loss. Its mean is over the step's tokens in successful trajectories, under the
    step's weights, so that it does not shrink where few succeed; the paper's mean is over all such tokens alike, which
    is `aggregate.by = "token"`.
    """

    coef: Annotated[float, Range(0)] = 0.1

    unverified = "accounts of the paper that give the formula were read, not its text"
    needs = frozenset({"success"})
    zero_at_zero_advantage = False
    valid_for = frozenset({"lag", "updates", "unsampled"})

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]:
        """Returns the factor that turns the mean over all tokens into the mean over those of successes."""
        success = batch.streams["success"]
        successful_weight = float((batch.weight * success).sum())
        scale = float(batch.weight.sum()) / successful_weight if successful_weight > 0 else 0.0
        return {"positive": (success * scale).astype(np.float32)}

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        likelihood = batch.streams["positive"] * out.logprobs
        return -self.coef * likelihood, {"positive_nll": -likelihood.detach()}
