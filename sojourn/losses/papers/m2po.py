"""The policy gradient under a bound on the second moment of log-ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from sojourn.config.fields import Range
from sojourn.losses.covariance import token_mask
from sojourn.losses.ratios import log_ratio, sampler_kl
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class M2PO:
    """-r A per token, without the tokens of largest |log r| among those whose ratio has moved in the direction of their
    advantage: as many are masked as it takes for the mean of (log r)^2 of the others to be at most `max_second_moment`
    (Zheng et al. 2025, arXiv:2510.01161, algorithm 1).

    A ratio has moved in that direction where r > 1 with a positive advantage, or r < 1 with a negative one. Tokens are
    masked in each minibatch, under the weights that are about to be updated, as in the paper; the division into
    micro-batches changes nothing. The authors' code clips ratios instead of masking tokens, in each micro-batch.
    """

    max_second_moment: Annotated[float, Range(above=0)] = 0.04
    coef: float = 1.0

    needs = frozenset[str]()
    zero_at_zero_advantage = True
    chooses = True

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        places = np.flatnonzero(batch.weight)
        log_r = (logprobs - batch.logprobs)[places].astype(np.float64)
        candidates = np.flatnonzero(log_r * batch.advantages[places] > 0)
        largest_first = candidates[np.argsort(-np.abs(log_r[candidates]), kind="stable")]
        remaining = np.cumsum(np.square(log_r[largest_first])[::-1])[::-1]  # sums without the first 0, 1, 2 ...
        fits = np.flatnonzero(remaining <= self.max_second_moment * (len(remaining) - np.arange(len(remaining))))
        masked = largest_first[: fits[0] if len(fits) else len(largest_first)]
        return {"m2po": token_mask(batch, places[masked])}

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        log_r, masked = log_ratio(out, batch), batch.streams["m2po"]
        # a huge ratio of a masked token must not make 0 times infinity
        ratio = log_r.where(masked == 0, 0.0).exp()
        loss = -ratio * batch.advantages * (1 - masked)
        return self.coef * loss, {"left_out": masked, "kl": sampler_kl(log_r)}
