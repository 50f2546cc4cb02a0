"""Another loss, corrected for what was sampled by other weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, cast

import torch

from sojourn.abilities import Chooses, DividesGradient, HasColumns, valid_for
from sojourn.composite import HasBases
from sojourn.config.registry import Kind, Range
from sojourn.losses.ppo import PPO
from sojourn.losses.ratios import mean_by
from sojourn.protocols import Output, Selected
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class Importance(HasBases):
    """w times another loss, whose ratio is then to the trainer's weights at the beginning of the step (decoupled PPO:
    Hilton et al. 2022, arXiv:2110.00641, eq. 4). w is the ratio of those weights to the sampler's, without gradient.

    It is a token's own ("token"), or the product ("product") or geometric mean ("mean") of those of its turn or
    sequence. `outside` decides what becomes of a w beyond `low` to `high`: "truncate" bounds it from above (truncated
    importance sampling: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"),
    "mask" leaves the token out (masked: Liu et al. 2025, "When speed kills stability"). What is left out still counts
    where tokens are averaged.
    """

    base: Annotated[Any, Kind("loss")] = field(default_factory=PPO)
    over: Literal["token", "turn", "sequence"] = "token"
    combine: Literal["product", "mean"] = "product"
    outside: Literal["truncate", "mask"] = "truncate"
    low: Annotated[float, Range(0)] = 0.0
    high: Annotated[float, Range(above=0)] = 2.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low = {self.low:g} with high = {self.high:g}: expected a low of at most that")
        if isinstance(self.base, DividesGradient):
            raise ValueError(
                f"base: {type(self.base).__name__} divides its gradient by that of another objective, which a weight "
                "changes: use it alone, or ppo as the base"
            )

    @property
    def needs(self) -> frozenset[str]:
        return self.base.needs | {"policy_logprobs"}

    @property
    def zero_at_zero_advantage(self) -> bool:
        return self.base.zero_at_zero_advantage

    @property
    def valid_for(self) -> frozenset[str]:
        return (valid_for(self.base) | {"lag"}) - {"unsampled"}

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]:
        return self.base.columns(batch) if isinstance(self.base, HasColumns) else {}

    @property
    def chooses(self) -> bool:
        return isinstance(self.base, Chooses) and self.base.chooses

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        """Returns what the base chooses in a minibatch, by the ratio that it has here."""
        return self.base.choose(replace(batch, logprobs=batch.streams["policy_logprobs"]), logprobs)

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        proximal = batch.streams["policy_logprobs"]
        weight = self._weight(proximal - batch.logprobs, batch)
        within = (weight >= self.low) & (weight <= self.high)
        bounded = weight.clamp(max=self.high) if self.outside == "truncate" else weight.where(within, 0.0)
        per_token, metrics = self.base(out, replace(cast(Any, batch), logprobs=proximal))
        return bounded * per_token, {**metrics, "off_policy": (~within).float(), "importance": bounded}

    def _weight(self, gap: torch.Tensor, batch: Selected) -> torch.Tensor:
        if self.over == "token":
            return gap.exp()
        numbers = batch.turn if self.over == "turn" else batch.sequence
        mean = mean_by(gap, numbers)
        return (mean if self.combine == "mean" else mean * torch.bincount(numbers)[numbers]).exp()
