"""The critic's error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from sojourn.config.registry import Range
from sojourn.losses.ratios import mean_by
from sojourn.protocols import Output, Selected
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class Value:
    """`coef` / 2 times the squared error of the critic, averaged over those tokens of a turn that have a target, and
    the same for all tokens of the turn (Schulman et al. 2017, arXiv:1707.06347, eq. 9).

    The average lets a critic that is asked once a turn weigh as much as one that is asked at every token. With `clip`
    the error is the greater of its own and of that after moving at most so far from the values of the step's beginning
    (the authors' published code; not in the paper). Beyond `huber` an error e counts by huber (2 |e| - huber) instead
    of by its square (Huber 1964, doi:10.1214/aoms/1177703732, eq. 1.3), so that a few returns that nobody could
    foresee do not decide all.
    """

    coef: Annotated[float, Range(0)] = 1.0
    clip: Annotated[float, Range(above=0)] | None = None
    huber_delta: Annotated[float, Range(above=0)] | None = None

    needs: ClassVar[frozenset[str]] = frozenset({"critic", "targets", "values"})
    zero_at_zero_advantage: ClassVar[bool] = False
    valid_for: ClassVar[frozenset[str]] = frozenset({"lag", "updates", "unsampled"})

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]:
        """How much of the variance of targets the critic explained at the step's beginning: 1 is all, 0 no more than
        their mean would."""
        targets, values = batch.streams["targets"], batch.streams["values"]
        asked = (batch.weight > 0) & np.isfinite(targets)
        spread = float(targets[asked].var()) if asked.any() else 0.0
        missed = float((targets - values)[asked].var()) if asked.any() else 0.0
        return {"explained_variance": np.full(len(batch), 1 - missed / spread if spread else 0.0, dtype=np.float32)}

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        targets, old = batch.streams["targets"], batch.streams["values"]
        asked = torch.isfinite(targets)
        wanted = torch.where(asked, targets, out.values.detach())
        error = self._cost(out.values - wanted)
        if self.clip is not None:
            near = old + (out.values - old).clamp(-self.clip, self.clip)
            error = torch.where(asked, torch.maximum(error, self._cost(near - wanted)), error)
        share = mean_by(asked.float(), batch.turn)
        per_token = mean_by(error, batch.turn) / torch.where(share > 0, share, 1.0)
        metrics = {"value": out.values.detach(), "value_error": per_token.detach()}
        metrics["explained_variance"] = batch.streams["explained_variance"]
        return self.coef / 2 * per_token, metrics

    def _cost(self, gap: torch.Tensor) -> torch.Tensor:
        if self.huber_delta is None:
            return gap.square()
        far = gap.abs()
        return torch.where(far > self.huber_delta, self.huber_delta * (2 * far - self.huber_delta), gap.square())
