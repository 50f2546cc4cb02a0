"""Computes a machine's floor: operations over the speed of its matrix product, bytes over that of its memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from sojourn.backends.torch.kernels.product import linear


class Machine(NamedTuple):
    gflops: float
    gb_per_s: float


def seconds(work: Callable[[], Any], device: str) -> float:
    synchronize = torch.cuda.synchronize if device == "cuda" else int
    synchronize()
    began = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - began


@torch.inference_mode()
def measure(dtype: torch.dtype, device: str) -> Machine:
    """The best of many: a product of 512 tokens on a CPU (4096 on a GPU) with a square weight, by torch or by Sojourn's
    trainer, whoever is faster; and the sum of a tensor that fits into no cache."""
    rows, width = (4096, 4096) if device == "cuda" else (512, 1536)
    whole = [torch.randn(n, width).to(device) for n in (rows, width)]
    ready = [t.to(dtype) for t in whole]
    ways = [lambda: torch.nn.functional.linear(*ready), lambda: linear(*whole, bf16=dtype == torch.bfloat16)]
    product = min(seconds(way, device) for _ in range(40) for way in ways)
    big = torch.ones(1 << 27, device=device)
    read = min(seconds(big.sum, device) for _ in range(10))
    return Machine(2 * rows * width * width / product / 1e9, big.nbytes / read / 1e9)


class Costs:
    """Least seconds for the steps of a Llama-like model, whose every context is stored and read by itself."""

    def __init__(self, model: Any, machine: Machine) -> None:
        config, width = model.config, model.dtype.itemsize
        inner = (p.numel() for n, p in model.named_parameters() if "embed" not in n and "lm_head" not in n)
        self.body, self.head = sum(inner), config.vocab_size * config.hidden_size
        self.attention = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim  # for each key
        self.kept = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * width
        self.machine, self.bytes = machine, (self.body + self.head) * width

    def prefill(self, tokens: int) -> float:
        """A prompt, its last logits included."""
        return self._operations(tokens * (2 * self.body + self.attention * tokens / 2) + 2 * self.head)

    def decode(self, batch: int, context: int) -> float:
        """One token in each context."""
        operations = batch * (2 * self.body + 2 * self.head + self.attention * context)
        moved = self.bytes + batch * context * self.kept
        return max(self._operations(operations), moved / self.machine.gb_per_s / 1e9)

    def _operations(self, count: float) -> float:
        return count / self.machine.gflops / 1e9
