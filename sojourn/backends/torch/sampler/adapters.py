"""Adds adapters to what a model's linear layers return, for the rows of a step that are theirs.

The rows of one adapter lie side by side, so that its matrices are read once for all of them. This is what torch does
where there is no kernel; `c_decoder` has the same in C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear

from sojourn.backends.torch.models.adapters import Adapter
from sojourn.backends.torch.sampler.attention import StepLayout


class AdaptedRows(NamedTuple):
    """Consecutive rows of a step, and the adapter that is added to them."""

    rows: slice
    adapter: Adapter


class Adapters:
    """The adapters over one model, in its dtype and on its device, by their names."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._held: dict[str, Adapter] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, name: str, adapter: Adapter) -> None:
        self._held[name] = {
            layer: type(pair)(*(part.to(self._device, self._dtype, copy=True) for part in pair))
            for layer, pair in adapter.items()
        }

    def drop(self, name: str) -> None:
        del self._held[name]

    def rows(self, layout: StepLayout) -> list[AdaptedRows]:
        """Returns the rows of a step to which adapters are added."""
        return [
            AdaptedRows(slice(span.first, span.stop), self._held[span.model])
            for span in layout.spans
            if span.model in self._held
        ]


def add(layer: str, x: torch.Tensor, y: torch.Tensor, adapted: Sequence[AdaptedRows]) -> None:
    """Adds to a linear layer's outputs y (N, outputs), in place, what adapters make of its inputs x (N, inputs)."""
    for rows, adapter in adapted:
        if (pair := adapter.get(layer)) is not None:
            y[rows] += linear(linear(x[rows], pair.down), pair.up)


class AdaptedLayers:
    """Adds adapters to the linear layers of a model of transformers, whose `rows` are set before each step."""

    def __init__(self, model: Any) -> None:
        self.rows: Sequence[AdaptedRows] = ()
        self._model = model
        self._hooked = set[str]()

    def hook(self, layers: Sequence[str]) -> None:
        """Makes layers, by their names, add the adapters of the rows."""
        for name in set(layers) - self._hooked:
            self._model.get_submodule(name).register_forward_hook(lambda _, x, y, name=name: self._added(name, x[0], y))
            self._hooked.add(name)

    def _added(self, name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.rows:
            add(name, x.reshape(-1, x.shape[-1]), y.view(-1, y.shape[-1]), self.rows)
        return y
