"""Holds the tensors of the sampler's cache: the keys and values of tokens, in pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

PAGE = 32  # tokens
PADDING = 64  # numbers after the last page: the kernel reads whole registers, which may reach beyond it


class Layer(NamedTuple):
    """The cache of one layer."""

    keys: torch.Tensor  # (kv_heads, pages * PAGE, head); within a page the kernel has its own order
    values: torch.Tensor  # (kv_heads, pages * PAGE, head)

    def read(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns keys and values (kv_heads, contexts, pages * PAGE, head) by tables of pages (contexts, pages). Only
        for a cache that torch wrote, without the kernel."""
        parts = []
        for tensor in self:
            paged = tensor.view(tensor.shape[0], -1, PAGE, tensor.shape[-1])
            parts.append(paged.index_select(1, pages.flatten()).view(tensor.shape[0], len(pages), -1, tensor.shape[-1]))
        return parts[0], parts[1]


class Shape(NamedTuple):
    """The shape of the keys and values that one token has in one layer."""

    kv_heads: int
    key: int
    value: int

    def size(self, dtype: torch.dtype) -> int:
        """Returns the bytes for each token."""
        return self.kv_heads * (self.key + self.value) * dtype.itemsize


class KeyValues:
    """The tensors of all layers and pages. Memory is first touched when a page is first used."""

    def __init__(self, shapes: Sequence[Shape], pages: int, dtype: torch.dtype, device: torch.device) -> None:
        def rows(heads: int, width: int) -> torch.Tensor:
            count = heads * pages * PAGE * width
            return torch.empty(count + PADDING, dtype=dtype, device=device)[:count].view(heads, -1, width)

        self.layers = [Layer(rows(s.kv_heads, s.key), rows(s.kv_heads, s.value)) for s in shapes]

    def copy(self, source: int, target: int) -> None:
        """Copies one page to another, in every layer."""
        for tensor in (tensor for layer in self.layers for tensor in layer):
            pages = tensor.view(tensor.shape[0], -1, PAGE * tensor.shape[-1])
            pages[:, target] = pages[:, source]
