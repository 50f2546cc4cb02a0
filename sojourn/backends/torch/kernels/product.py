"""The trainer's matrix products on a CPU, by a kernel: inputs in fp32 or bf16, sums and results in fp32.

MKL leaves half of the width of vectors unused on processors that Intel did not make, and oneDNN compiles anew for every
number of rows (measured: LOG.md). Where there is no compiler, or not on a CPU, torch multiplies.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from sojourn.backends.torch.kernels import compiler
from sojourn.backends.torch.kernels.kernel import scratch


@cache
def _library(bf16: bool) -> Any:
    """Returns the compiled product, or None: also where the processor multiplies whole tiles of bf16 (AMX), as oneDNN
    does and the kernel does not."""
    if bf16 and torch.cpu._is_amx_tile_supported():
        return None
    return compiler.compiled("product", *([compiler.REAL16] if bf16 else []))


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, bf16: bool = False
) -> torch.Tensor:
    """Returns x (rows, inputs) @ weight.T (inputs, outputs) + bias in fp32, for tensors of any layout. With `bf16` the
    factors are rounded to bf16."""
    supported = {x.dtype, weight.dtype} == {torch.float32} and x.device.type == "cpu" and x.numel() and len(weight)
    if not supported or (library := _library(bf16)) is None:
        dtype = torch.bfloat16 if bf16 else x.dtype
        return functional.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)).float()
    x, weight = (t if 1 in t.stride() else t.contiguous() for t in (x, weight))
    rows, inputs, outputs = *x.shape, len(weight)
    out = x.new_empty(rows, outputs)
    memory = scratch(library.matmul_scratch_size(rows, inputs, outputs))
    row, column = weight.stride()
    library.matmul(
        *(x.data_ptr(), *x.stride(), weight.data_ptr(), column, row),  # the weight is transposed
        *(rows, inputs, outputs, out.data_ptr(), memory.data_ptr()),
    )
    return out if bias is None else out.add_(bias)


def use_kernel(model: Any, *, bf16: bool) -> None:
    """Makes the model's linear layers multiply by `linear`, forward and backward."""
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            layer: Any = module
            layer.forward = partial(_forward, module, bf16)


def _forward(module: torch.nn.Linear, bf16: bool, x: torch.Tensor) -> torch.Tensor:
    return _Linear.apply(x, module.weight, module.bias, bf16)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, bf16: bool) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bf16 = bf16
        return linear(x.reshape(-1, x.shape[-1]), weight, bias, bf16=bf16).view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x, weight), bf16 = ctx.saved_tensors, ctx.bf16
        rows, x_grad, weight_grad, bias_grad = grad.reshape(-1, grad.shape[-1]), None, None, None
        if ctx.needs_input_grad[0]:
            x_grad = linear(rows, weight.T, bf16=bf16).view(x.shape)
        if ctx.needs_input_grad[1]:
            weight_grad = linear(rows.T, x.reshape(-1, x.shape[-1]).T, bf16=bf16)
        if ctx.needs_input_grad[2]:
            bias_grad = rows.sum(0)
        return x_grad, weight_grad, bias_grad, None
