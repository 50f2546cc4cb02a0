"""The trainer's kernel as differentiable functions in fp32 on a CPU: tree attention, norms, gates and rotary positions.

Torch needs many passes over memory for these, and computes scores that are then masked; the kernel needs one pass. The
order of its sums does not depend on the number of threads. Where there is no compiler, `load` returns None.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from sojourn.backends.torch.kernels import compiler
from sojourn.backends.torch.kernels.header import constants, header
from sojourn.backends.torch.kernels.kernel import scratch as scratch_memory
from sojourn.batch.share import Tree

STRIDES = ("query_row", "query_head", "key_row", "key_head", "value_row", "value_head")  # fields of the C structure


class BlockMask(NamedTuple):
    """Says which blocks of queries attend to which panels of keys in a tree, under one window, as the kernel reads
    it."""

    nodes: int
    window: int  # 0: none
    tiles: int  # the number of tiles (query block, key panel) that are not masked out
    subtree_ends: torch.Tensor  # of nodes, padded to whole panels
    positions: torch.Tensor  # of nodes, padded to whole panels
    query_nodes: torch.Tensor  # (Q,)
    block_mask: torch.Tensor  # (blocks, panels)
    tile_index: torch.Tensor  # (blocks, panels)

    def tree(self, **fields: float) -> Any:
        """Returns the kernel's `struct Tree`, which points to these tensors, with further fields of it."""
        sizes = {"nodes": self.nodes, "queries": len(self.query_nodes), "window": self.window, "tiles": self.tiles}
        pointers = {name: getattr(self, name).data_ptr() for name in self._fields[3:]}
        return header().new("struct Tree *", sizes | pointers | fields)


class TrainerKernel:
    """The compiled functions for heads of one shape, as differentiable functions; `key` is the size of a key."""

    def __init__(self, library: Any, key: int) -> None:
        self.c, self.key = library, key
        self.panel: int = library.panel_width()

    def block_mask(self, tree: Tree, window: int | None, rows: torch.Tensor | None = None) -> BlockMask:
        """Returns the mask for queries of the nodes in `rows` (Q,), ascending, or of all nodes."""
        count, panels = len(tree.tokens), -(-len(tree.tokens) // self.panel)
        padding = (0, panels * self.panel - count)
        ends, positions = (
            torch.from_numpy(np.pad(values.astype(np.int32), padding)) for values in (tree.ends, tree.positions)
        )
        queries = torch.arange(count, dtype=torch.int32) if rows is None else rows.to(torch.int32)
        shape = (-(-len(queries) // (constants()["QUERY_BLOCK_PANELS"] * self.panel)), panels)
        tables = (torch.empty(shape, dtype=torch.int8), torch.empty(shape, dtype=torch.int32))
        mask = BlockMask(count, window or 0, 0, ends, positions, queries, *tables)
        return mask._replace(tiles=self.c.tree_block_mask(mask.tree()))

    def attend(
        self,
        query: torch.Tensor,  # (Q, heads, key)
        key: torch.Tensor,  # (M, kv_heads, key)
        value: torch.Tensor,  # (M, kv_heads, value)
        mask: BlockMask,
        scale: float,
    ) -> torch.Tensor:
        """Returns the attention of each query to its node and the nodes before it on its path: (Q, heads, value)."""
        rows = (t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value))
        return _Attend.apply(self, mask, scale, *rows)

    def norm(self, hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Returns hidden / rms(hidden) * weight for rows (..., H)."""
        return _Norm.apply(self, hidden.contiguous(), weight, eps)

    def add_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns hidden + residual, and its norm."""
        return _AddNorm.apply(self, hidden.contiguous(), residual.contiguous(), weight, eps)

    def silu_gate(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Returns silu(gate) * up."""
        return _SiluGate.apply(self, gate.contiguous(), up.contiguous())

    def rotate(self, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        """Applies half-split rotary positions (M, key) to heads (M, heads, key)."""
        return _Rotate.apply(self, heads.contiguous(), cosines, sines)


@cache
def load(key: int, value: int, repeats: int) -> TrainerKernel | None:
    """Returns the kernel for heads of these sizes, `repeats` query heads for each key head, or None."""
    library = compiler.compiled("gradients", *compiler.head_sizes(key, value, repeats))
    return None if library is None else TrainerKernel(library, key)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernel: TrainerKernel,
        mask: BlockMask,
        scale: float,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> torch.Tensor:
        heads, rows = query.shape[1], (query, key, value)
        strides = dict(zip(STRIDES, (stride for t in rows for stride in t.stride()[:2]), strict=True))
        ctx.kernel, ctx.mask = kernel, mask  # the structure points to the mask's tensors
        ctx.tree = mask.tree(heads=heads, kv_heads=key.shape[1], scale=scale, **strides)
        out = query.new_empty(len(query), heads, value.shape[-1])
        log_sums = query.new_zeros(heads, -(-len(query) // kernel.panel) * kernel.panel)
        scratch = _scratch(ctx, backward=False)
        kernel.c.tree_attention_forward(ctx.tree, *_addresses(*rows, out, log_sums, scratch))
        ctx.save_for_backward(*rows, out, log_sums)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        saved, grad, scratch = ctx.saved_tensors, grad.contiguous(), _scratch(ctx, backward=True)
        grads = [t.new_empty(t.shape) for t in saved[:3]]
        ctx.kernel.c.tree_attention_backward(ctx.tree, *_addresses(*saved, grad, *grads, scratch))
        return None, None, None, *grads


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernel: TrainerKernel, hidden: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        out, scales = torch.empty_like(hidden), hidden.new_empty(hidden.shape[:-1])
        addresses = _addresses(hidden, None, weight, None, out, scales)
        kernel.c.rms_norm_forward(*addresses, scales.numel(), hidden.shape[-1], eps)
        ctx.kernel = kernel
        ctx.save_for_backward(hidden, weight, scales)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden_grad, weight_grad = _norm_backward(ctx, grad, None, ctx.needs_input_grad[2])
        return None, hidden_grad, weight_grad, None


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernel: TrainerKernel,
        hidden: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total, out, scales = torch.empty_like(hidden), torch.empty_like(hidden), hidden.new_empty(hidden.shape[:-1])
        addresses = _addresses(hidden, residual, weight, total, out, scales)
        kernel.c.rms_norm_forward(*addresses, scales.numel(), hidden.shape[-1], eps)
        ctx.kernel = kernel
        ctx.save_for_backward(total, weight, scales)
        return total, out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, total_grad: torch.Tensor, grad: torch.Tensor
    ) -> tuple[Any, ...]:
        input_grad, weight_grad = _norm_backward(ctx, grad, total_grad.contiguous(), ctx.needs_input_grad[3])
        return None, input_grad, input_grad, weight_grad, None


class _SiluGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: TrainerKernel, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(gate)
        kernel.c.silu_gate_forward(*_addresses(gate, up, out), gate.numel())
        ctx.kernel = kernel
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gate, up = ctx.saved_tensors
        gate_grad, up_grad, grad = torch.empty_like(gate), torch.empty_like(up), grad.contiguous()
        ctx.kernel.c.silu_gate_backward(*_addresses(gate, up, grad, gate_grad, up_grad), gate.numel())
        return None, gate_grad, up_grad


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernel: TrainerKernel, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
    ) -> torch.Tensor:
        ctx.kernel = kernel
        ctx.save_for_backward(cosines, sines)
        return _rotate(kernel, heads, cosines, sines, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        cosines, sines = ctx.saved_tensors
        return None, _rotate(ctx.kernel, grad.contiguous(), cosines, sines, -1), None, None


def _addresses(*tensors: torch.Tensor | None) -> list[int]:
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def _scratch(ctx: Any, *, backward: bool) -> torch.Tensor:
    return scratch_memory(ctx.kernel.c.tree_scratch_size(ctx.tree, backward))


def _norm_backward(
    ctx: Any, grad: torch.Tensor, total_grad: torch.Tensor | None, weight_needs_grad: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the gradients to the norm's input and to its weight, if that needs one."""
    total, weight, scales = ctx.saved_tensors
    rows, size = scales.numel(), total.shape[-1]
    input_grad, grad = torch.empty_like(total), grad.contiguous()
    blocks = -(-rows // constants()["NORM_GRAD_ROWS"])
    sums = total.new_empty(blocks, size) if weight_needs_grad else None
    addresses = _addresses(total, weight, scales, grad, total_grad, input_grad, sums)
    ctx.kernel.c.rms_norm_backward(*addresses, rows, size)
    return input_grad, None if sums is None else sums.sum(0)


def _rotate(
    kernel: TrainerKernel, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, sign: int
) -> torch.Tensor:
    out = torch.empty_like(heads)
    kernel.c.rotate_rows(*_addresses(heads, out), *heads.shape[:2], *_addresses(cosines, sines), sign)
    return out
