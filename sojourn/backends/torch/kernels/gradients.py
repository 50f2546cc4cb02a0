"""The trainer's kernel as differentiable functions, in fp32 on a CPU: attention over a tree, norms, gates, rotation.

What torch does in many passes over memory, or with scores that a mask then hides, is one pass here; sums have one order
on however many threads. Where there is no compiler, `load` gives None.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from sojourn.backends.torch.kernels import kernel
from sojourn.batch.share import Tree

CUT = 3  # panels whose nodes are a block of queries, as in gradients.c
SHARED = 64  # rows whose gradients to a norm's weight are one sum, as in gradients.c
STRIDES = ("query_row", "query_head", "key_row", "key_head", "value_row", "value_head")
FIELDS = ("nodes", "queries", "heads", "kv_heads", "window", "tiles", *STRIDES)
About = kernel.struct(FIELDS, ("ends", "positions", "asked", "sights", "numbers"), ("scale",))
LAYOUTS = {
    "tree_forward": "ppppppp",
    "tree_backward": "ppppppppppp",
    "tree_sights": "p",
    "tree_scratch": "pi",
    "norm_forward": "ppppppiif",
    "norm_backward": "pppppppii",
    "gate_forward": "pppi",
    "gate_backward": "pppppi",
    "turn_rows": "ppiippf",
    "panel_size": "",
}
SIZES = ("panel_size", "tree_sights", "tree_scratch")  # functions that return a number


class Sights(NamedTuple):
    """Which of the nodes asked about sees which node of a tree, under one window, as the kernel reads it."""

    nodes: int
    window: int  # 0: none
    tiles: int  # blocks of queries by panels of keys in which any see each other
    ends: torch.Tensor  # of nodes, to the end of the last panel
    positions: torch.Tensor
    asked: torch.Tensor  # (Q,)
    sights: torch.Tensor  # (blocks, panels)
    numbers: torch.Tensor

    def about(self, scale: float = 0.0, *sizes: int) -> Any:
        """The kernel's structure; sizes are heads, key heads and strides."""
        heads, strides = sizes[:2] or (0, 0), sizes[2:] or (0,) * len(STRIDES)
        at = (t.data_ptr() for t in (self.ends, self.positions, self.asked, self.sights, self.numbers))
        return About(self.nodes, len(self.asked), *heads, self.window, self.tiles, *strides, *at, scale)


class Gradients:
    """The compiled functions for heads of one shape, whose keys are of `key` numbers."""

    def __init__(self, functions: Any, key: int) -> None:
        self.c, self.key = functions, key
        self.panel = functions.panel_size()

    def sights(self, tree: Tree, window: int | None, rows: torch.Tensor | None = None) -> Sights:
        """Of the nodes in `rows` (Q,), ascending, or of all."""
        count, panels = len(tree.tokens), -(-len(tree.tokens) // self.panel)
        more = (0, panels * self.panel - count)
        ends, positions = (torch.from_numpy(np.pad(of.astype(np.int32), more)) for of in (tree.ends, tree.positions))
        asked = torch.arange(count, dtype=torch.int32) if rows is None else rows.to(torch.int32)
        sizes = (-(-len(asked) // (CUT * self.panel)), panels)
        tables = (torch.empty(sizes, dtype=torch.int8), torch.empty(sizes, dtype=torch.int32))
        made = Sights(count, window or 0, 0, ends, positions, asked, *tables)
        about = made.about()
        return made._replace(tiles=self.c.tree_sights(ctypes.addressof(about)))

    def attend(
        self,
        query: torch.Tensor,  # (Q, heads, key)
        key: torch.Tensor,  # (M, kv_heads, key)
        value: torch.Tensor,  # (M, kv_heads, value)
        sights: Sights,
        scale: float,
    ) -> torch.Tensor:
        """Each node asked about looks at itself and the nodes before it on its path: (Q, heads, value)."""
        rows = (t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value))
        return _Attend.apply(self, sights, scale, *rows)

    def norm(self, hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """hidden / rms(hidden) * weight, for rows (..., H)."""
        return _Norm.apply(self, hidden.contiguous(), weight, eps)

    def add_norm(
        self, hidden: torch.Tensor, more: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden + more, and its norm."""
        return _AddNorm.apply(self, hidden.contiguous(), more.contiguous(), weight, eps)

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up."""
        return _Gated.apply(self, gate.contiguous(), up.contiguous())

    def turned(self, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        """Heads (M, heads, key) by half-split rotary positions (M, key)."""
        return _Turned.apply(self, heads.contiguous(), cosines, sines)


@cache
def load(key: int, value: int, repeats: int) -> Gradients | None:
    found = kernel.built("gradients", *kernel.defines(key, value, repeats))
    if found is None:
        return None
    return Gradients(kernel.functions(found, LAYOUTS, SIZES), key)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        own: Gradients,
        sights: Sights,
        scale: float,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> torch.Tensor:
        heads, rows = query.shape[1], (query, key, value)
        strides = (stride for t in rows for stride in t.stride()[:2])
        ctx.own, ctx.sights = own, sights  # whose arrays the structure points to
        ctx.about = sights.about(scale, heads, key.shape[1], *strides)
        out = query.new_empty(len(query), heads, value.shape[-1])
        norms = query.new_zeros(heads, -(-len(query) // own.panel) * own.panel)
        about, scratch = ctypes.addressof(ctx.about), _scratch(ctx, backward=False)
        own.c.tree_forward(about, *_at(*rows, out, norms, scratch))
        ctx.save_for_backward(*rows, out, norms)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, out, norms = ctx.saved_tensors
        to = [t.new_empty(t.shape) for t in (query, key, value)]
        slope, about, scratch = slope.contiguous(), ctypes.addressof(ctx.about), _scratch(ctx, backward=True)
        ctx.own.c.tree_backward(about, *_at(query, key, value, out, norms, slope, *to, scratch))
        return None, None, None, *to


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Gradients, hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out, scales = torch.empty_like(hidden), hidden.new_empty(hidden.shape[:-1])
        at = (*_at(hidden), None, *_at(weight), None, *_at(out, scales))
        own.c.norm_forward(*at, scales.numel(), hidden.shape[-1], eps)
        ctx.own = own
        ctx.save_for_backward(hidden, weight, scales)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        to_hidden, to_weight = _norm_backward(ctx, slope, None, ctx.needs_input_grad[2])
        return None, to_hidden, to_weight, None


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, own: Gradients, hidden: torch.Tensor, more: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total, out, scales = torch.empty_like(hidden), torch.empty_like(hidden), hidden.new_empty(hidden.shape[:-1])
        own.c.norm_forward(*_at(hidden, more, weight, total, out, scales), scales.numel(), hidden.shape[-1], eps)
        ctx.own = own
        ctx.save_for_backward(total, weight, scales)
        return total, out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, beside: torch.Tensor, slope: torch.Tensor
    ) -> tuple[Any, ...]:
        to_sum, to_weight = _norm_backward(ctx, slope, beside.contiguous(), ctx.needs_input_grad[3])
        return None, to_sum, to_sum, to_weight, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Gradients, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(gate)
        own.c.gate_forward(*_at(gate, up, out), gate.numel())
        ctx.own = own
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gate, up = ctx.saved_tensors
        to_gate, to_up, slope = torch.empty_like(gate), torch.empty_like(up), slope.contiguous()
        ctx.own.c.gate_backward(*_at(gate, up, slope, to_gate, to_up), gate.numel())
        return None, to_gate, to_up


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, own: Gradients, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
    ) -> torch.Tensor:
        ctx.own = own
        ctx.save_for_backward(cosines, sines)
        return _turn(own, heads, cosines, sines, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        cosines, sines = ctx.saved_tensors
        return None, _turn(ctx.own, slope.contiguous(), cosines, sines, -1), None, None


def _at(*tensors: torch.Tensor) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _scratch(ctx: Any, *, backward: bool) -> torch.Tensor:
    size = ctx.own.c.tree_scratch(ctypes.addressof(ctx.about), backward)
    return kernel.scratch(size)


def _norm_backward(
    ctx: Any, slope: torch.Tensor, beside: torch.Tensor | None, weighed: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    total, weight, scales = ctx.saved_tensors
    rows, size = scales.numel(), total.shape[-1]
    to_sum, slope = torch.empty_like(total), slope.contiguous()
    sums = total.new_empty(-(-rows // SHARED), size) if weighed else None
    extra = (None if t is None else t.data_ptr() for t in (beside, to_sum, sums))
    ctx.own.c.norm_backward(*_at(total, weight, scales, slope), *extra, rows, size)
    return to_sum, None if sums is None else sums.sum(0)


def _turn(own: Gradients, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, sign: int) -> torch.Tensor:
    out = torch.empty_like(heads)
    own.c.turn_rows(*_at(heads, out), *heads.shape[:2], *_at(cosines, sines), sign)
    return out
