"""Tensors that are read in parts, so that no process needs to hold all of one, or all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open


class StoredTensor(NamedTuple):
    """A tensor that is read when it is wanted: `read(first, last)` returns these rows of it, and a scalar itself. What
    is drawn at random is read once, in the order in which it comes."""

    shape: tuple[int, ...]
    read: Callable[[int, int], torch.Tensor]

    def whole(self) -> torch.Tensor:
        return self.read(0, self.shape[0] if self.shape else 1)


def held(tensor: torch.Tensor) -> StoredTensor:
    """Returns a tensor that is in memory already."""
    return StoredTensor(tuple(tensor.shape), lambda first, last: tensor[first:last] if tensor.ndim else tensor)


def stored(file: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Yields the tensors of a safetensors file by their names, unread."""
    with safe_open(file, "pt") as opened:
        shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118  (it is no mapping)
    for name, shape in shapes.items():
        yield name, StoredTensor(shape, partial(_rows, file, name, shape))


def _rows(file: Path, name: str, shape: tuple[int, ...], first: int, last: int) -> torch.Tensor:
    """Reads rows. The file is opened for each tensor, as what was read of an open one stays in memory."""
    with safe_open(file, "pt") as opened:
        if first == 0 and last == (shape[0] if shape else 1):
            return opened.get_tensor(name)
        return opened.get_slice(name)[first:last]
