"""What losses that change another loss have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from sojourn.abilities import Chooses, Compares, DividesGradient, HasColumns, HasOwnMean, valid_for
from sojourn.composite import HasBases
from sojourn.config.fields import Kind
from sojourn.losses.ppo import PPO
from sojourn.protocols import Loss
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class WrappedLoss(HasBases):
    """Multiplies or chooses the tokens of another loss, and otherwise does what that does."""

    base: Annotated[Loss, Kind("loss")] = field(default_factory=PPO)

    def __post_init__(self) -> None:
        if isinstance(self.base, DividesGradient):
            raise ValueError(
                f"base: {type(self.base).__name__} divides its gradient by that of another objective, which a weight "
                "changes: use it alone, or ppo as the base"
            )

    @property
    def needs(self) -> frozenset[str]:
        return self.base.needs

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
    def own_mean(self) -> bool:
        return isinstance(self.base, HasOwnMean) and self.base.own_mean

    @property
    def chooses(self) -> bool:
        return isinstance(self.base, Chooses) and self.base.chooses

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]:
        return self.base.columns(batch) if isinstance(self.base, HasColumns) else {}

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        assert isinstance(self.base, Chooses)  # as `chooses` is true
        return self.base.choose(batch, logprobs)
