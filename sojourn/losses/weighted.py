"""A loss whose tokens are weighed by a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import torch

from sojourn.abilities import Chooses, Compares, DividesGradient, HasColumns, valid_for
from sojourn.composite import HasBases
from sojourn.config.fields import NONBLANK, Kind
from sojourn.losses.ppo import PPO
from sojourn.protocols import Loss, PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class Weighted(HasBases):
    """Another loss, each token of which is multiplied by its number in the stream `stream`.

    With the stream `dynamics_ratio` and the base `value` it is the critic's squared error with the importance weight of
    the world's dynamics (H2O: Niu et al. 2022, arXiv:2206.13464); with `success` only tokens of successful trajectories
    are trained. The policy's and the critic's loss have a wrapper each. A token with a low weight still counts in the
    mean of the loss.
    """

    base: Annotated[Loss, Kind("loss")] = field(default_factory=PPO)
    stream: Annotated[str, NONBLANK] = "success"

    def __post_init__(self) -> None:
        if isinstance(self.base, DividesGradient):
            raise ValueError(
                f"base: {type(self.base).__name__} divides its gradient by that of another objective, which a weight "
                "changes: use it alone, or ppo as the base"
            )

    @property
    def needs(self) -> frozenset[str]:
        return self.base.needs | {self.stream}

    @property
    def zero_at_zero_advantage(self) -> bool:
        return self.base.zero_at_zero_advantage

    @property
    def valid_for(self) -> frozenset[str]:
        return valid_for(self.base)

    @property
    def compares(self) -> bool:
        return isinstance(self.base, Compares) and self.base.compares

    @property
    def chooses(self) -> bool:
        return isinstance(self.base, Chooses) and self.base.chooses

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]:
        return self.base.columns(batch) if isinstance(self.base, HasColumns) else {}

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        assert isinstance(self.base, Chooses)  # as `chooses` is true
        return self.base.choose(batch, logprobs)

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        weight = batch.streams[self.stream]
        per_token, metrics = self.base(out, batch)
        return weight * per_token, {**metrics, f"{self.stream}_weight": weight}
