"""The clipped surrogate without some of the tokens at which entropy is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from sojourn.config.registry import Range
from sojourn.losses.covariance import covariances, marked
from sojourn.losses.ppo import PPO
from sojourn.protocols import Output, Selected
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class ClipCov:
    """PPO, but of the tokens whose covariance is between `low` and `high`, a random `share` of all tokens (one, at the
    least) teach nothing (Clip-Cov: Cui et al. 2025, arXiv:2505.22617, eq. 11-12).

    The covariance and the choice are of each minibatch, by the weights that it updates, and tokens that the clip
    already silences are not chosen, as in the authors' code. That code chooses in each part of a minibatch that passes
    at once; here how a minibatch is divided changes nothing.
    """

    share: Annotated[float, Range(above=0, max=1)] = 2e-4
    low: float = 1.0
    high: float = 5.0
    clip_low: Annotated[float, Range(0, 1)] = 0.2
    clip_high: Annotated[float, Range(0)] = 0.2
    coef: float = 1.0

    needs: ClassVar[frozenset[str]] = frozenset()
    zero_at_zero_advantage: ClassVar[bool] = True
    chooses: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low = {self.low:g} with high = {self.high:g}: expected a low of at most that")

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        where, found = covariances(batch, logprobs)
        able = where[(found > self.low) & (found < self.high) & ~self._clipped(batch, logprobs)[where]]
        rng = np.random.default_rng(crc32(batch.tokens.tobytes()))
        return {"clip_cov": marked(batch, rng.permutation(able)[: max(1, int(self.share * len(where)))])}

    def _clipped(self, batch: Batch, logprobs: FloatArray) -> NDArray[np.bool_]:
        """Returns which tokens have no gradient, as their ratio is beyond the clip in the direction of their advantage:
        (N,)."""
        gap = logprobs - batch.logprobs  # compared as logarithms, which stay finite
        above, below = np.log1p(self.clip_high), np.log1p(-self.clip_low) if self.clip_low < 1 else -np.inf
        return np.where(batch.advantages > 0, gap > above, gap < below) & (batch.advantages != 0)

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        per_token, metrics = PPO(clip_low=self.clip_low, clip_high=self.clip_high, coef=self.coef)(out, batch)
        silent = batch.streams["clip_cov"]
        return per_token * (1 - silent), {**metrics, "silenced": silent}
