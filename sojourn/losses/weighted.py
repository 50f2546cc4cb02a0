"""A loss whose tokens are weighed by a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch

from sojourn.config.fields import NONBLANK
from sojourn.losses.wrapped import WrappedLoss
from sojourn.protocols import PassOutput, SelectedTokens


@dataclass(frozen=True, kw_only=True)
class Weighted(WrappedLoss):
    """Another loss, each token of which is multiplied by its number in the stream `stream`.

    With the stream `dynamics_ratio` and the base `value` it is the critic's squared error with the importance weight of
    the world's dynamics (H2O: Niu et al. 2022, arXiv:2206.13464); with `success` only tokens of successful trajectories
    are trained. The policy's and the critic's loss have a wrapper each. A token with a low weight still counts in the
    mean of the loss.
    """

    stream: Annotated[str, NONBLANK] = "success"

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {self.stream}

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        weight = batch.streams[self.stream]
        per_token, metrics = self.base(out, batch)
        return weight * per_token, {**metrics, f"{self.stream}_weight": weight}
