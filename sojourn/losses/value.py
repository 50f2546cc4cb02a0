"""The squared error of the critic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from sojourn.config.fields import Range
from sojourn.losses.ratios import mean_by
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class Value:
    """`coef` / 2 times the critic's squared error, averaged over the tokens of a turn that have a target, for all
    tokens of the turn alike (Schulman et al. 2017, arXiv:1707.06347, eq. 9).

    By this average, a critic with one target per turn weighs as much as one with a target at every token. With `clip`
    the error is the larger of the critic's own and that of its value clipped to within `clip` of its value at the
    step's beginning (the authors' published code; not in the paper). An error e beyond `huber_delta` counts as
    huber_delta (2 |e| - huber_delta) instead of e^2 (Huber 1964, doi:10.1214/aoms/1177703732, eq. 1.3), so that a few
    unforeseeable returns do not dominate.
    """

    coef: Annotated[float, Range(0)] = 1.0
    clip: Annotated[float, Range(above=0)] | None = None
    huber_delta: Annotated[float, Range(above=0)] | None = None

    needs = frozenset({"critic", "targets", "values"})
    zero_at_zero_advantage = False
    valid_for = frozenset({"lag", "updates", "unsampled"})

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]:
        """Returns the fraction of the targets' variance that the critic explained at the step's beginning.

        1 is all of it, 0 no more than the targets' mean would explain.
        """
        targets, values = batch.streams["targets"], batch.streams["values"]
        has_target = (batch.weight > 0) & np.isfinite(targets)
        variance = float(targets[has_target].var()) if has_target.any() else 0.0
        residual = float((targets - values)[has_target].var()) if has_target.any() else 0.0
        explained = 1 - residual / variance if variance else 0.0
        return {"explained_variance": np.full(len(batch), explained, dtype=np.float32)}

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        targets, old_values = batch.streams["targets"], batch.streams["values"]
        has_target = torch.isfinite(targets)
        safe_targets = torch.where(has_target, targets, out.values.detach())
        error = self._cost(out.values - safe_targets)
        if self.clip is not None:
            clipped = old_values + (out.values - old_values).clamp(-self.clip, self.clip)
            error = torch.where(has_target, torch.maximum(error, self._cost(clipped - safe_targets)), error)
        fraction = mean_by(has_target.float(), batch.turn)
        per_token = mean_by(error, batch.turn) / torch.where(fraction > 0, fraction, 1.0)
        metrics = {"value": out.values.detach(), "value_error": per_token.detach()}
        metrics["explained_variance"] = batch.streams["explained_variance"]
        return self.coef / 2 * per_token, metrics

    def _cost(self, error: torch.Tensor) -> torch.Tensor:
        if self.huber_delta is None:
            return error.square()
        size = error.abs()
        return torch.where(size > self.huber_delta, self.huber_delta * (2 * size - self.huber_delta), error.square())
