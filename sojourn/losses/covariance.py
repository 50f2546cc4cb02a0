"""What the two losses have in common that hold back the tokens at which entropy is lost."""

from __future__ import annotations

import numpy as np

from sojourn.types import Batch, FloatArray, IntArray


def covariances(batch: Batch, logprobs: FloatArray) -> tuple[IntArray, FloatArray]:
    """Returns the places of the minibatch's tokens, and for each the product of its log-probability's and its
    advantage's distance from their means (Cui et al. 2025, arXiv:2505.22617, eq. 10): where it is great, an update
    lowers the entropy."""
    where = np.flatnonzero(batch.weight)
    said, advantages = (column[where].astype(np.float64) for column in (logprobs, batch.advantages))
    if not len(where):
        return where, np.zeros(0, dtype=np.float32)
    return where, ((said - said.mean()) * (advantages - advantages.mean())).astype(np.float32)


def marked(batch: Batch, places: IntArray) -> FloatArray:
    """1 at the places, else 0: (N,)."""
    marks = np.zeros(len(batch), dtype=np.float32)
    marks[places] = 1
    return marks
