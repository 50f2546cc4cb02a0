"""The tensors of the sampler's cache: keys and values of tokens, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

PAGE = 32  # tokens
BEYOND = 64  # numbers: the kernel reads whole registers, also where the last ones are not meant


class Layer(NamedTuple):
    keys: torch.Tensor  # (kv_heads, pages * PAGE, head); within a page the kernel has its own order
    values: torch.Tensor  # (kv_heads, pages * PAGE, head)

    def read(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (kv_heads, contexts, pages * PAGE, head) of tables of pages (contexts, pages),
        where torch wrote them."""
        parts = []
        for tensor in self:
            paged = tensor.view(tensor.shape[0], -1, PAGE, tensor.shape[-1])
            parts.append(paged.index_select(1, pages.flatten()).view(tensor.shape[0], len(pages), -1, tensor.shape[-1]))
        return parts[0], parts[1]


class Shape(NamedTuple):
    """What one token leaves in one layer."""

    kv_heads: int
    key: int
    value: int

    def size(self, dtype: torch.dtype) -> int:
        """Bytes for each token."""
        return self.kv_heads * (self.key + self.value) * dtype.itemsize


class KeyValues:
    """The tensors of all pages. Memory is first touched when a page is first used."""

    def __init__(self, shapes: Sequence[Shape], pages: int, dtype: torch.dtype, device: torch.device) -> None:
        def rows(heads: int, width: int) -> torch.Tensor:
            count = heads * pages * PAGE * width
            return torch.empty(count + BEYOND, dtype=dtype, device=device)[:count].view(heads, -1, width)

        self.layers = [Layer(rows(s.kv_heads, s.key), rows(s.kv_heads, s.value)) for s in shapes]

    def copy(self, source: int, target: int) -> None:
        """One page to another, in whatever order its tokens lie."""
        for tensor in (tensor for layer in self.layers for tensor in layer):
            pages = tensor.view(tensor.shape[0], -1, PAGE * tensor.shape[-1])
            pages[:, target] = pages[:, source]
