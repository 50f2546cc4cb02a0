"""Importance sampling correction for another loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

import torch

from sojourn.config.fields import Range
from sojourn.config.unused import refuse_unused
from sojourn.losses.ratios import mean_by
from sojourn.losses.wrapped import WrappedLoss
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class Importance(WrappedLoss):
    """Another loss multiplied by the importance weight w, the ratio, without gradient, of the trainer's weights at the
    beginning of the step (the proximal policy) to the sampler's (decoupled PPO: Hilton et al. 2022, arXiv:2110.00641,
    eq. 4).

    The ratio of the base is then to the proximal policy. w is the ratio of the token (`level` = "token"), or of its
    turn or sequence: the product (`combine` = "product") or the geometric mean ("mean") of the tokens' ratios. `mode`
    says what happens to a w outside of [`min_weight`, `max_weight`]: "truncate" bounds it from above (truncated
    importance sampling: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"),
    "mask" sets it to 0 (masked: Liu et al. 2025, "When speed kills stability"). A masked token still counts where
    tokens are averaged.
    """

    level: Literal["token", "turn", "sequence"] = "token"
    combine: Literal["product", "mean"] = "product"
    mode: Literal["truncate", "mask"] = "truncate"
    min_weight: Annotated[float, Range(0)] = 0.0
    max_weight: Annotated[float, Range(above=0)] = 2.0

    def __post_init__(self) -> None:
        if self.min_weight > self.max_weight:
            raise ValueError(
                f"min_weight = {self.min_weight:g} with max_weight = {self.max_weight:g}: expected "
                "min_weight <= max_weight"
            )
        if self.level == "token":
            refuse_unused(self, ["combine"], 'with level = "token", as a token has one ratio')
        if self.mode == "truncate":
            refuse_unused(self, ["min_weight"], 'with mode = "truncate", which bounds weights from above alone')
        super().__post_init__()

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"policy_logprobs"}

    @property
    def valid_for(self) -> frozenset[str]:
        return (super().valid_for | {"lag"}) - {"unsampled"}

    @property
    def whole_trajectories(self) -> bool:
        return self.level == "sequence"

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        """Returns what the base chooses in a minibatch, where its ratio is to the proximal policy."""
        return super().choose(replace(batch, logprobs=batch.streams["policy_logprobs"]), logprobs)

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        proximal = batch.streams["policy_logprobs"]
        weight = self._weight(proximal - batch.logprobs, batch)
        inside = (weight >= self.min_weight) & (weight <= self.max_weight)
        bounded = weight.clamp(max=self.max_weight) if self.mode == "truncate" else weight.where(inside, 0.0)
        per_token, metrics = self.base(out, replace(cast(Any, batch), logprobs=proximal))
        return bounded * per_token, {**metrics, "off_policy": (~inside).float(), "importance": bounded}

    def _weight(self, log_w: torch.Tensor, batch: SelectedTokens) -> torch.Tensor:
        if self.level == "token":
            return log_w.exp()
        numbers = batch.turn if self.level == "turn" else batch.sequence
        mean = mean_by(log_w, numbers)
        return (mean if self.combine == "mean" else mean * torch.bincount(numbers)[numbers]).exp()
