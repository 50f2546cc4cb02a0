"""The sampler's kernel: attention over the cache, sampling of tokens, and whole steps of a decoder, in C.

Where there is no compiler, or the model is not on the CPU, `load` returns None, and torch does the same, more slowly.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from sojourn.backends.torch.kernels import compiler
from sojourn.backends.torch.kernels.cache import Layer, Shape


class Rows(NamedTuple):
    """Tokens that attend one by one, each to the first `lengths` tokens of its context."""

    page_tables: torch.Tensor  # (contexts, pages)
    contexts: torch.Tensor  # (R,) rows of `page_tables`
    lengths: torch.Tensor  # (R,)


class Kernel:
    """The compiled functions for tensors of one shape and dtype. Work is divided among torch's own threads."""

    def __init__(self, library: Any, shape: Shape, dtype: torch.dtype) -> None:
        self._c, self._shape, self.dtype = library, shape, dtype
        self.panel_width: int = library.panel_width()

    def attend(
        self, layer: Layer, query: torch.Tensor, rows: Rows, scale: float, window: int | None, softcap: float | None
    ) -> torch.Tensor:
        """Returns the attention (R, heads, value) of queries (R, heads, key)."""
        out, query = query.new_empty(len(query), query.shape[1], self._shape.value), query.float()
        self._c.paged_attention(
            *(query.data_ptr(), query.stride(0), query.stride(1), out.data_ptr()),
            *(layer.keys.data_ptr(), layer.values.data_ptr(), layer.keys.shape[1], len(query), self._shape.kv_heads),
            *(rows.page_tables.data_ptr(), rows.page_tables.shape[1]),
            *(rows.contexts.data_ptr(), rows.lengths.data_ptr(), window or 0, scale, softcap or 0.0),
        )
        return out

    def store(self, layer: Layer, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Writes keys and values (R, kv_heads, head) to their slots in the cache."""
        self._c.store_kv(
            *(key.data_ptr(), key.stride(0), key.stride(1), value.data_ptr(), value.stride(0), value.stride(1)),
            *(layer.keys.data_ptr(), layer.values.data_ptr(), layer.keys.shape[1], len(key), self._shape.kv_heads),
            slots.data_ptr(),
        )

    def sample(
        self, logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a token for each row of fp32 logits (R, V), -1 where they are not finite, and its log-probability, by
        temperatures in fp32 and uniform numbers in double precision."""
        tokens, logprobs = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits), dtype=torch.float64)
        inputs = (logits.data_ptr(), *logits.shape, temperatures.data_ptr(), uniforms.data_ptr())
        self._c.sample_tokens(*inputs, tokens.data_ptr(), logprobs.data_ptr())
        return tokens, logprobs

    def panels(self, outputs: int, inputs: int) -> torch.Tensor:
        """Returns memory for weights in the layout that `decoder_forward` reads."""
        return torch.zeros(-(-outputs // self.panel_width), inputs, self.panel_width, dtype=self.dtype)

    def pack(self, weight: torch.Tensor, panels: torch.Tensor, first_output: int) -> None:
        """Packs a weight (outputs, inputs) into panels, as their outputs from `first_output` on."""
        weight = weight.contiguous()
        self._c.pack_weight(weight.data_ptr(), *weight.shape, panels.data_ptr(), first_output)

    def decoder_forward(self, model: Any, step: Any) -> None:
        """Runs a whole step of a decoder. The arguments are pointers to the header's `struct Model` and `struct
        Step`."""
        self._c.decoder_forward(model, step, torch.get_num_threads())


def load(shapes: Sequence[Shape], heads: int, dtype: torch.dtype, device: torch.device) -> Kernel | None:
    """Returns the kernel for a model whose layers all have the same shape, or None."""
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16) or len(set(shapes)) > 1:
        return None
    shape = shapes[0]
    if dtype == torch.bfloat16 and shape.key % 2:  # the kernel multiplies bf16 in pairs
        return None
    real = [compiler.REAL16] if dtype == torch.bfloat16 else []
    sizes = compiler.head_sizes(shape.key, shape.value, heads // shape.kv_heads)
    library = compiler.compiled("decoder", *sizes, *real)
    return None if library is None else Kernel(library, shape, dtype)


def large_memory(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns memory for `size` numbers, in large pages where the system has them: reading many small ones takes the
    processor more time, as it must look up each."""
    memory = mmap.mmap(-1, max(size, 1) * dtype.itemsize)
    if sys.platform == "linux":
        with suppress(OSError):  # a system without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)[:size]


def scratch(size: int) -> torch.Tensor:
    """Returns scratch memory for one call, which this thread reuses for the next: new memory must first be cleared by
    the system."""
    if getattr(_kept, "scratch", None) is None or len(_kept.scratch) < size:
        _kept.scratch = torch.empty(size)
    return _kept.scratch


_kept = threading.local()
