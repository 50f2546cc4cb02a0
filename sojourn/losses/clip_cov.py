"""The clipped surrogate without some of the tokens at which entropy is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar
from zlib import crc32

import numpy as np
import torch

from sojourn.config.registry import Range
from sojourn.losses.covariance import covariances, marked
from sojourn.losses.ppo import PPO
from sojourn.protocols import Output, Selected
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class ClipCov:
    """PPO, but of the tokens whose covariance is between `low` and `high`, a random `share` of all tokens (one, at the
    least) teach nothing (Clip-Cov: Cui et al. 2025, arXiv:2505.22617, eq. 11-12).

    The covariance is of the sampler's log-probabilities and the whole step, so that neither minibatches nor parts
    change it; the authors' code takes those of the policy in each minibatch.
    """

    share: Annotated[float, Range(above=0, most=1)] = 2e-4
    low: float = 1.0
    high: float = 5.0
    clip_low: Annotated[float, Range(0, 1)] = 0.2
    clip_high: Annotated[float, Range(0)] = 0.2
    coef: float = 1.0

    needs: ClassVar[frozenset[str]] = frozenset()
    zero_at_zero_advantage: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low = {self.low:g} with high = {self.high:g}: expected a low of at most that")

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]:
        where, found = covariances(batch)
        able = where[(found > self.low) & (found < self.high)]
        rng = np.random.default_rng(crc32(batch.tokens.tobytes()))
        return {"clip_cov": marked(batch, rng.permutation(able)[: max(1, int(self.share * len(where)))])}

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        per_token, metrics = PPO(clip_low=self.clip_low, clip_high=self.clip_high, coef=self.coef)(out, batch)
        silent = batch.streams["clip_cov"]
        return per_token * (1 - silent), {**metrics, "silenced": silent}
