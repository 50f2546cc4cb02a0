"""Further columns that a pass can compute for each token, beside its log-probability and entropy, by name.

A loss asks for one by naming it in `needs`, a stream by `Trainer.forward(..., columns=[...])`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from sojourn.backends.torch.trainer import head
from sojourn.backends.torch.trainer.head import HeadQuery

Compute = Callable[[torch.Tensor, Any, HeadQuery], torch.Tensor]  # returns (n,)


class PassColumn(NamedTuple):
    """`compute` is given the hidden states that predict n tokens (n, H), the vocabulary head, and its query."""

    dtype: Any
    compute: Compute


def top_logprob(hidden: torch.Tensor, linear: Any, query: HeadQuery) -> torch.Tensor:
    """Returns the log-probability of the most likely token in the place of each: (n,), with gradient."""
    return head.score(hidden, linear, replace(query, tokens=head.top_token(hidden, linear, query))).logprobs


COLUMNS: Mapping[str, PassColumn] = {
    "top_token": PassColumn(np.int64, head.top_token),
    "top_logprob": PassColumn(np.float32, top_logprob),
}

# Further ones, that compare the distribution in the place of each token with a teacher's: see `divergence`.
OF_DISTRIBUTIONS = frozenset({"reverse_kl", "forward_kl", "jsd"})
