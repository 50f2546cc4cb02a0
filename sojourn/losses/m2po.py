"""The policy gradient within a bound on the second moment of log-ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from sojourn.config.registry import Range
from sojourn.losses.covariance import marked
from sojourn.losses.ratios import log_ratio, sampler_kl
from sojourn.protocols import Output, Selected
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class M2PO:
    """-r A per token, but of those that go on in the direction of their advantage the farthest are left out, until the
    mean of (log r)^2 of the others is at most `bound` (Zheng et al. 2025, arXiv:2510.01161, algorithm 1).

    A token goes on where r is above 1 and its advantage positive, or below 1 and negative. Tokens are chosen in each
    minibatch, by the weights that it updates, as in the paper; how it is divided for memory changes nothing. The
    authors' code bounds ratios instead of leaving tokens out, in each part of a minibatch that passes at once.
    """

    max_second_moment: Annotated[float, Range(above=0)] = 0.04
    coef: float = 1.0

    needs: ClassVar[frozenset[str]] = frozenset()
    zero_at_zero_advantage: ClassVar[bool] = True
    chooses: ClassVar[bool] = True

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        where = np.flatnonzero(batch.weight)
        gap = (logprobs - batch.logprobs)[where].astype(np.float64)
        onward = np.flatnonzero(gap * batch.advantages[where] > 0)
        farthest = onward[np.argsort(-np.abs(gap[onward]), kind="stable")]
        left = np.cumsum(np.square(gap[farthest])[::-1])[::-1]  # of all but the first 0, 1, 2 ...
        fits = np.flatnonzero(left <= self.max_second_moment * (len(left) - np.arange(len(left))))
        return {"m2po": marked(batch, where[farthest[: fits[0] if len(fits) else len(farthest)]])}

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        gap, left_out = log_ratio(out, batch), batch.streams["m2po"]
        # where it is left out, a huge ratio must not make 0 times infinity
        ratio = gap.where(left_out == 0, 0.0).exp()
        loss = -ratio * batch.advantages * (1 - left_out)
        return self.coef * loss, {"left_out": left_out, "kl": sampler_kl(gap)}
