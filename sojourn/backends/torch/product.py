"""Matrix products with weights that stay: in the layout that is fastest for the number of rows."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

MANY = 192  # rows, from which on the weights' own layout is as fast as a packed one (measured: LOG.md)
ROWS = 32  # for which weights are packed; any other number of rows works as well


class Product:
    """x @ weight.T for one weight matrix or several side by side, without biases.

    The joined matrix is the storage of the modules' own parameters, which become views of it: what is written into one
    is in the other. For few rows oneDNN multiplies by a packed copy, two to four times as fast on a CPU: `refresh` it
    after writing.
    """

    def __init__(self, *modules: Any) -> None:
        self.weight = modules[0].weight.data if len(modules) == 1 else _join(*modules)
        self._packed = _pack(self.weight)

    def refresh(self) -> None:
        if self._packed is not None:
            self._packed = _pack(self.weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is None or len(x) >= MANY:
            return linear(x, self.weight)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")


def _pack(weight: torch.Tensor) -> torch.Tensor | None:
    """A copy for oneDNN, as torch's own compiler makes them; None where that cannot be: not on a CPU, not with this
    torch, not with numbers of this kind on this processor."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    try:
        return torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
    except (AttributeError, RuntimeError):
        return None


def _join(*parts: Any) -> torch.Tensor:
    """One matrix that holds the weights of all, which become views of it."""
    joined = torch.cat([part.weight.data for part in parts])
    for part, weight in zip(parts, joined.split([len(part.weight) for part in parts]), strict=True):
        part.weight.data = weight
    return joined
