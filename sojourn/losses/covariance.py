"""What Clip-Cov and KL-Cov share: the covariance of log-probability and advantage at each token."""

from __future__ import annotations

import numpy as np

from sojourn.types import Batch, FloatArray, IntArray


def covariances(batch: Batch, logprobs: FloatArray) -> tuple[IntArray, FloatArray]:
    """Returns the places of the minibatch's trained tokens, and for each the product of the distances of its
    log-probability and of its advantage from their means (Cui et al. 2025, arXiv:2505.22617, eq. 10).

    An update lowers the entropy at tokens where this covariance is large.
    """
    places = np.flatnonzero(batch.weight)
    log_p, advantages = (column[places].astype(np.float64) for column in (logprobs, batch.advantages))
    if not len(places):
        return places, np.zeros(0, dtype=np.float32)
    return places, ((log_p - log_p.mean()) * (advantages - advantages.mean())).astype(np.float32)


def token_mask(batch: Batch, places: IntArray) -> FloatArray:
    """Returns 1 at these places and 0 elsewhere: (N,)."""
    mask = np.zeros(len(batch), dtype=np.float32)
    mask[places] = 1
    return mask
