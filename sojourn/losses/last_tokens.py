"""What losses of reward models share: where a trajectory or a turn is scored, and how much each score counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.types import Batch, FloatArray, IntArray


def last_tokens(batch: Batch, owner: IntArray, where: NDArray[np.bool_] | None = None) -> IntArray:
    """Returns the index of the last token that carries weight for each owner, by the owner's number; `owner` (N,) has
    the owner of each token, such as its turn. `where` (N,) leaves out the tokens for which it is false."""
    at = np.flatnonzero((batch.weight > 0) & (True if where is None else where))[::-1]
    _, first = np.unique(owner[at], return_index=True)
    return at[first]


def spread(batch: Batch, at: IntArray, numbers: Any) -> FloatArray:
    """Returns a column (N,) with `numbers` divided by the weights of the tokens `at`, and 0 for the others: its sum by
    the weights is the sum of the numbers, however tokens are averaged."""
    column = np.zeros(len(batch), dtype=np.float32)
    column[at] = numbers / batch.weight[at]
    return column


def mean_over_all(batch: Batch, at: IntArray, numbers: Any) -> FloatArray:
    """Returns a column (N,) with the mean of `numbers` (n,), one for each of the tokens `at`: a metric of the batch."""
    return np.full(len(batch), numbers.mean() if len(at) else 0.0, dtype=np.float32)
