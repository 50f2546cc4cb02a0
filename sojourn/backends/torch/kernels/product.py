"""The trainer's matrix products, by a kernel of its own on a CPU: inputs in fp32 or bf16, sums and results in fp32.

MKL leaves half of the width of vectors unused on processors that Intel did not make, and oneDNN compiles anew for every
number of rows (measured: LOG.md). Where there is no compiler, or not on a CPU, torch multiplies.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from sojourn.backends.torch.kernels import kernel

LAYOUTS = {"multiply": "piipiiiiipp", "product_scratch": "iii"}


@cache
def _functions(half: bool) -> Any:
    """None too where the processor multiplies whole tiles of bf16 (AMX), as oneDNN does and the kernel does not."""
    if half and torch.cpu._is_amx_tile_supported():
        return None
    found = kernel.built("product", *([kernel.REAL16] if half else []))
    return None if found is None else kernel.functions(found, LAYOUTS, ("product_scratch",))


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, half: bool = False
) -> torch.Tensor:
    """x (rows, inputs) @ weight.T (inputs, outputs) + bias, in whatever layout. What is multiplied is rounded to bf16
    where `half`; the result is in fp32."""
    whole = {x.dtype, weight.dtype} == {torch.float32} and x.device.type == "cpu" and x.numel() and len(weight)
    if not whole or (by := _functions(half)) is None:
        kind = torch.bfloat16 if half else x.dtype
        return functional.linear(x.to(kind), weight.to(kind), None if bias is None else bias.to(kind)).float()
    x, weight = (t if 1 in t.stride() else t.contiguous() for t in (x, weight))
    rows, inputs, outputs = *x.shape, len(weight)
    out = x.new_empty(rows, outputs)
    sizes, right = (rows, inputs, outputs), weight.T
    memory = kernel.scratch(by.product_scratch(*sizes))
    given = ((t.data_ptr(), *t.stride()) for t in (x, right))
    by.multiply(*next(given), *next(given), *sizes, out.data_ptr(), memory.data_ptr())
    return out if bias is None else out.add_(bias)


def enlist(model: Any, *, half: bool) -> None:
    """Lets the model's linear layers multiply so, forward and backward."""
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            layer: Any = module
            layer.forward = partial(_forward, module, half)


def _forward(module: torch.nn.Linear, half: bool, x: torch.Tensor) -> torch.Tensor:
    return _Linear.apply(x, module.weight, module.bias, half)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, half: bool) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.half = half
        return linear(x.reshape(-1, x.shape[-1]), weight, bias, half=half).view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x, weight), half = ctx.saved_tensors, ctx.half
        rows, to_x, to_weight, to_bias = slope.reshape(-1, slope.shape[-1]), None, None, None
        if ctx.needs_input_grad[0]:
            to_x = linear(rows, weight.T, half=half).view(x.shape)
        if ctx.needs_input_grad[1]:
            to_weight = linear(rows.T, x.reshape(-1, x.shape[-1]).T, half=half)
        if ctx.needs_input_grad[2]:
            to_bias = rows.sum(0)
        return to_x, to_weight, to_bias, None
