"""Packs weights into one flat array, which Ray's object store keeps once a node and hands out without a copy."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

ALIGNMENT = 64  # bytes, of the start of each tensor


class PackedTensor(NamedTuple):
    """Says where a tensor lies: from byte `start` on, row by row."""

    name: str
    dtype: str  # a name of torch, such as "bfloat16"
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class PackedWeights:
    """Holds the weights of a model: the bytes of all tensors, and where each one lies."""

    data: NDArray[np.uint8]
    tensors: tuple[PackedTensor, ...]

    def unpack(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields each tensor by its name. They share memory with `data`: copy before writing."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            data = torch.from_numpy(self.data)
        for one in self.tensors:
            yield one.name, data[one.start : one.stop].view(getattr(torch, one.dtype)).view(one.shape)

    def packed(self) -> PackedWeights:
        """Returns itself, as `StoredWeights.packed` returns what it has read."""
        return self


def pack(weights: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype | None = None) -> PackedWeights:
    """Returns a packed copy of the weights; `dtype` is what floating-point tensors are rounded to."""
    found: list[tuple[PackedTensor, torch.Tensor]] = []
    stop = 0
    for name, tensor in weights:
        own = tensor.detach().cpu()
        own = own.to(dtype) if dtype is not None and own.is_floating_point() else own
        start = -(-stop // ALIGNMENT) * ALIGNMENT
        stop = start + own.numel() * own.element_size()
        found.append((PackedTensor(name, str(own.dtype).removeprefix("torch."), tuple(own.shape), start, stop), own))
    data = np.zeros(stop, dtype=np.uint8)
    for place, tensor in found:
        data[place.start : place.stop] = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return PackedWeights(data, tuple(place for place, _ in found))
