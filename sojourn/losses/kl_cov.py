"""The policy gradient, held back at the tokens at which entropy is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from sojourn.config.registry import Range
from sojourn.losses.covariance import covariances, marked
from sojourn.losses.ratios import log_ratio, sampler_kl
from sojourn.protocols import Output, Selected
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class KLCov:
    """-r A per token and, for the `share` of tokens (one, at the least) of greatest covariance, `penalty` times
    (log r)^2 / 2, an estimate of KL(sampler || policy) (KL-Cov: Cui et al. 2025, arXiv:2505.22617, eq. 13-14).

    The penalty has no gradient where policy and sampler agree, so it holds a step's later updates back, and those that
    lag. The authors' code takes |log r|, whose gradient where they agree is the sign of a rounding error. The
    covariance and the choice are of each minibatch, by the weights that it updates (see `clip_cov`).
    """

    share: Annotated[float, Range(above=0, max=1)] = 2e-4
    penalty: Annotated[float, Range(0)] = 1.0
    coef: float = 1.0

    needs: ClassVar[frozenset[str]] = frozenset()
    zero_at_zero_advantage: ClassVar[bool] = False
    chooses: ClassVar[bool] = True

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        where, found = covariances(batch, logprobs)
        count = max(1, int(self.share * len(where)))
        return {"kl_cov": marked(batch, where[np.argsort(-found, kind="stable")[:count]])}

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        gap, held = log_ratio(out, batch), batch.streams["kl_cov"]
        loss = -gap.exp() * batch.advantages + self.penalty * held * gap.square() / 2
        return self.coef * loss, {"held_back": held, "kl": sampler_kl(gap)}
