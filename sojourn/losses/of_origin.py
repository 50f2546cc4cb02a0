"""A loss for the groups of some origins alone, such as demonstrations beside groups that the policy played."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from sojourn.abilities import DividesGradient
from sojourn.config.fields import NONBLANK
from sojourn.losses.wrapped import WrappedLoss
from sojourn.protocols import Loss, PassOutput, SelectedTokens
from sojourn.streams.origins import number_of
from sojourn.types import Batch, FloatArray


@dataclass(frozen=True, kw_only=True)
class OfOrigin(WrappedLoss):
    """Another loss, `base`, on the tokens of those groups alone whose origin is among `origins`; 0 on all others.

    The origin is "policy" for groups that the policy played for the step, else the name of the source that gave them:
    "experts", "replay", "folder", "imported". So one step can imitate demonstrations and reinforce what was played.
    The base sees these tokens as if the step had no others. With `mean` = "step" each keeps its weight in the step, so
    the loss counts for as much as there are tokens of it; with "origins" the loss is the mean over these tokens alone,
    however few they are. A base that is a mean of its own, such as over pairs, counts for the same with both. Metrics
    are means over these tokens, too, and begin with the names of the origins. Where all groups are of these origins,
    both are the base itself.
    """

    origins: tuple[Annotated[str, NONBLANK], ...] = ("policy",)
    mean: Literal["step", "origins"] = "step"

    def __post_init__(self) -> None:
        if not self.origins:
            raise ValueError('origins = []: name at least one, such as origins = ["experts"]')
        if isinstance(self.base, DividesGradient):
            raise ValueError(
                f"base: {type(self.base).__name__} divides the gradient of the whole step, other origins included: use "
                "it for all groups, or ppo as the base"
            )

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"origins"}

    def of_origin(self, origin: str) -> Loss | None:
        return self.base if origin in self.origins else None

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]:
        """Returns by how much the mean over all tokens is to be multiplied to be that over these, 0 at all others; and
        the base's columns of these tokens, under names of their own."""
        mask = self._mask(batch)
        inside = self._inside(batch, mask)
        own = float(inside.weight.sum())
        scale = float(batch.weight.sum()) / own if own > 0 else 0.0
        columns = super().columns(inside) if own > 0 else {}
        return {self._name: (mask * scale).astype(np.float32), **self._renamed(columns)}

    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]:
        """Returns what the base chooses among these tokens of a minibatch, under names of its own."""
        inside = self._inside(batch, self._mask(batch))
        return self._renamed(super().choose(inside, logprobs)) if inside.weight.any() else {}

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        scale = batch.streams[self._name]
        where = torch.nonzero(scale)[:, 0]
        if not len(where):
            return out.logprobs.masked_fill(torch.ones_like(scale, dtype=torch.bool), 0.0), {}
        factor = scale[where]
        per_token, metrics = self.base(_picked_output(out, where), self._picked(batch, where))
        if self.mean == "origins" and not self.own_mean:
            per_token = per_token * factor
        zeros = out.logprobs.new_zeros(len(scale))
        prefix = "_".join(self.origins)
        return zeros.index_copy(0, where, per_token), {
            f"{prefix}_{name}": zeros.index_copy(0, where, values.float() * factor) for name, values in metrics.items()
        }

    @property
    def _name(self) -> str:
        return f"of_{'_'.join(self.origins)}"

    def _mask(self, batch: Batch) -> NDArray[np.bool_]:
        """Returns which tokens are of these origins: (N,)."""
        return np.isin(batch.streams["origins"], np.array([number_of(o) for o in self.origins], dtype=np.float32))

    def _inside(self, batch: Batch, mask: NDArray[np.bool_]) -> Batch:
        """Returns the batch as if it had no other tokens to train."""
        return replace(batch, weight=batch.weight * mask, streams=self._restored(batch.streams))

    def _renamed(self, columns: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        return {f"{self._name}.{name}": values for name, values in columns.items()}

    def _restored(self, streams: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the streams with the base's columns under the names that the base knows."""
        prefix = f"{self._name}."
        own = {name.removeprefix(prefix): values for name, values in streams.items() if name.startswith(prefix)}
        return {**streams, **own}

    def _picked(self, batch: SelectedTokens, where: torch.Tensor) -> SelectedTokens:
        """Returns the tokens at `where`, with turns and sequences numbered anew."""
        return replace(
            cast(Any, batch),
            weight=batch.weight[where],
            logprobs=batch.logprobs[where],
            advantages=batch.advantages[where],
            turn=torch.unique(batch.turn[where], return_inverse=True)[1],
            sequence=torch.unique(batch.sequence[where], return_inverse=True)[1],
            streams={name: values[where] for name, values in self._restored(batch.streams).items()},
        )


def _picked_output(out: PassOutput, where: torch.Tensor) -> PassOutput:
    values = out.values[where] if len(out.values) else out.values
    return PassOutput(
        out.logprobs[where], out.entropy[where], values, {name: column[where] for name, column in out.columns.items()}
    )
