"""The clipped surrogate without some tokens of high covariance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from sojourn.config.fields import Range
from sojourn.losses.covariance import covariances, token_mask
from sojourn.losses.ppo import PPO
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class ClipCov:
    """PPO without the gradient of a random `fraction` of all tokens (at least one), drawn from the tokens whose
    covariance of log-probability and advantage is between `min_covariance` and `max_covariance` (Clip-Cov: Cui et al.
    2025, arXiv:2505.22617, eq. 11-12).

    An update on such tokens lowers the entropy. Covariance and choice are those of each minibatch, under the weights
    that are about to be updated, and tokens without a gradient because of the clip are not chosen, as in the authors'
    code. That code chooses within each micro-batch; here the division into micro-batches changes nothing.
    """

    fraction: Annotated[float, Range(above=0, max=1)] = 2e-4
    min_covariance: float = 1.0
    max_covariance: float = 5.0
    clip_low: Annotated[float, Range(0, 1)] = 0.2
    clip_high: Annotated[float, Range(0)] = 0.2
    coef: float = 1.0

    needs = frozenset[str]()
    zero_at_zero_advantage = True
    chooses = True

    def __post_init__(self) -> None:
        if self.min_covariance > self.max_covariance:
            raise ValueError(
                f"min_covariance = {self.min_covariance:g} with max_covariance = {self.max_covariance:g}: expected "
                "min_covariance <= max_covariance"
            )

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        places, values = covariances(batch, logprobs)
        in_range = (values > self.min_covariance) & (values < self.max_covariance)
        candidates = places[in_range & ~self._clipped(batch, logprobs)[places]]
        rng = np.random.default_rng(crc32(batch.tokens.tobytes()))
        count = max(1, int(self.fraction * len(places)))
        return {"clip_cov": token_mask(batch, rng.permutation(candidates)[:count])}

    def _clipped(self, batch: Batch, logprobs: FloatArray) -> NDArray[np.bool_]:
        """Returns which tokens have no gradient because their ratio is beyond the clip in the direction of their
        advantage: (N,)."""
        log_r = logprobs - batch.logprobs  # compared as logarithms, which stay finite
        above, below = np.log1p(self.clip_high), np.log1p(-self.clip_low) if self.clip_low < 1 else -np.inf
        return np.where(batch.advantages > 0, log_r > above, log_r < below) & (batch.advantages != 0)

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        per_token, metrics = PPO(clip_low=self.clip_low, clip_high=self.clip_high, coef=self.coef)(out, batch)
        silenced = batch.streams["clip_cov"]
        return per_token * (1 - silenced), {**metrics, "silenced": silenced}
