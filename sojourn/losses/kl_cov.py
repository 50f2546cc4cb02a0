"""The policy gradient with a KL penalty at tokens of high covariance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from sojourn.config.fields import Range
from sojourn.losses.covariance import covariances, token_mask
from sojourn.losses.ratios import log_ratio, sampler_kl
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class KLCov:
    """-r A per token, plus, for the `fraction` of tokens (at least one) with the largest covariance of log-probability
    and advantage, `kl_coef` times (log r)^2 / 2, an estimate of KL(sampler || policy) (KL-Cov: Cui et al. 2025,
    arXiv:2505.22617, eq. 13-14).

    The penalty has no gradient where policy and sampler agree, so it restrains the later updates of a step, and those
    on lagging samples. The authors' code takes |log r|, whose gradient where they agree is the sign of a rounding
    error. Covariance and choice are those of each minibatch, under the weights that are about to be updated (see
    `clip_cov`).
    """

    fraction: Annotated[float, Range(above=0, max=1)] = 2e-4
    kl_coef: Annotated[float, Range(0)] = 1.0
    coef: float = 1.0

    needs = frozenset[str]()
    zero_at_zero_advantage = False
    chooses = True

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        places, values = covariances(batch, logprobs)
        count = max(1, int(self.fraction * len(places)))
        return {"kl_cov": token_mask(batch, places[np.argsort(-values, kind="stable")[:count]])}

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        log_r, penalised = log_ratio(out, batch), batch.streams["kl_cov"]
        loss = -log_r.exp() * batch.advantages + self.kl_coef * penalised * log_r.square() / 2
        return self.coef * loss, {"held_back": penalised, "kl": sampler_kl(log_r)}
