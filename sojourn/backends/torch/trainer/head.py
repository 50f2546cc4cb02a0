"""The vocabulary head: the logprob of one token a row and the row's entropy, without all logits at once.

Rows pass in chunks of bounded size. A single chunk keeps its logits for the backward pass; of several, each is computed
again there. Both passes are in closed form (d logprob = onehot - p; d entropy = -p (log p + entropy)), and what is
done to each logit is done in blocks that stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from sojourn.backends.torch.kernels import product
from sojourn.errors import ModelError
from sojourn.types import Batch, IntArray

CHUNK_BYTES = 2**28  # of fp32 logits
BLOCK_BYTES = 2**21
IMPOSSIBLE = -1e30  # finite, so that probability 0 times its logarithm is 0


class Read(NamedTuple):
    logprobs: torch.Tensor  # (n,)
    entropy: torch.Tensor  # (n,)


@dataclass(frozen=True)
class Asked:
    """What each of the n rows is asked: the logprob of which token, at which temperature, among which tokens."""

    tokens: torch.Tensor  # (n,)
    temperature: torch.Tensor  # (n,)
    allowed: Mapping[int, torch.Tensor]  # row -> token ids; rows that are absent may be any token
    cap: float | None  # soft cap of the logits
    half: bool  # whether matrix products are of bf16
    rows: int  # of a chunk

    @classmethod
    def of(
        cls,
        batch: Batch,
        where: IntArray,
        head: torch.nn.Linear,
        *,
        cap: float | None,
        bf16: bool,
        chunk: int,
        **how: Any,
    ) -> Asked:
        """For the tokens of the batch at `where`; a chunk's logits take at most `chunk` bytes, or are one row."""
        device = head.weight.device
        allowed = {row: batch.allowed[int(i)] for row, i in enumerate(where) if int(i) in batch.allowed}
        return cls(
            torch.from_numpy(batch.tokens[where]).to(device),
            torch.from_numpy(batch.temperature[where]).to(device),
            {row: torch.from_numpy(np.asarray(ids, dtype=np.int64)).to(device) for row, ids in allowed.items()},
            cap,
            bf16,
            max(1, chunk // (4 * head.out_features)),
            **how,
        )

    def chunks(self) -> Iterator[slice]:
        return _slices(0, len(self.tokens), self.rows)

    def forbidden(self, block: slice, like: torch.Tensor) -> torch.Tensor | None:
        """True at the tokens that a row of the block may not be; None where all may be."""
        rows = [row for row in range(block.start, block.stop) if row in self.allowed]
        if not rows:
            return None
        mask = torch.zeros_like(like, dtype=torch.bool)
        for row in rows:
            mask[row - block.start] = True
            mask[row - block.start, self.allowed[row]] = False
        return mask


def read(hidden: torch.Tensor, head: Any, asked: Asked) -> Read:
    """For hidden states (n, H), with gradients to them and to the head. Raises `ModelError` where it is not linear."""
    if type(head) is not torch.nn.Linear:
        raise ModelError(
            f"the model's output layer is a {type(head).__name__}: expected a plain torch.nn.Linear: the trainer "
            "computes its gradient in closed form"
        )
    return Read(*_Head.apply(hidden, head.weight, head.bias, asked))


@torch.no_grad()
def top_token(hidden: torch.Tensor, head: Any, asked: Asked) -> torch.Tensor:
    """Returns the most likely of the allowed tokens of each row: (n,)."""
    table = _table(head.weight, asked)
    parts = [_logits(hidden, table, head.bias, asked, rows).argmax(1) for rows in asked.chunks()]
    return torch.cat([asked.tokens[:0], *parts])


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, asked: Asked
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count, table = len(hidden), _table(weight, asked)
        norm, logprobs, entropy = (hidden.new_zeros(count, dtype=torch.float32) for _ in range(3))
        logits = hidden.new_zeros(0)
        for rows in asked.chunks():
            logits = _logits(hidden, table, bias, asked, rows)
            for block in _blocks(rows, logits):
                part = logits[block.start - rows.start : block.stop - rows.start]
                top = part.amax(1, keepdim=True)
                gap = part - top
                each = gap.exp()
                total = each.sum(1)
                chosen = gap.gather(1, asked.tokens[block, None])[:, 0]
                norm[block] = top[:, 0] + total.log()
                logprobs[block] = torch.where(chosen <= IMPOSSIBLE, float("-inf"), chosen - total.log())
                entropy[block] = total.log() - each.mul_(gap).sum(1) / total
        ctx.save_for_backward(hidden, weight, bias, norm, entropy)
        ctx.set_materialize_grads(False)
        ctx.asked = asked
        ctx.kept = logits if count <= asked.rows and any(ctx.needs_input_grad) else None
        return logprobs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, norm, entropy = ctx.saved_tensors
        asked, table, to_hidden = ctx.asked, _table(weight, ctx.asked), torch.zeros_like(hidden)
        to_weight = to_bias = None
        for rows in asked.chunks():
            logits = ctx.kept if ctx.kept is not None else _logits(hidden, table, bias, asked, rows)
            ctx.kept = None  # overwritten here
            for block in _blocks(rows, logits):
                part = logits[block.start - rows.start : block.stop - rows.start]
                _differentiate(part, asked, block, norm, entropy, grads)
            to_hidden[rows] = product.linear(logits, table.T, half=asked.half)
            if ctx.needs_input_grad[1]:
                to_weight = _sum(to_weight, product.linear(logits.T, hidden[rows].T, half=asked.half))
            if ctx.needs_input_grad[2]:
                to_bias = _sum(to_bias, logits.sum(0))
        given = (None if to is None else to.to(weight.dtype) for to in (to_weight, to_bias))
        return to_hidden, *given, None


def _slices(start: int, stop: int, size: int) -> Iterator[slice]:
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


def _blocks(rows: slice, logits: torch.Tensor) -> Iterator[slice]:
    """Rows of a chunk whose logits fit the cache; on an accelerator, all of them."""
    size = BLOCK_BYTES // (4 * logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    return _slices(rows.start, rows.stop, max(1, size))


def _logits(
    hidden: torch.Tensor, table: torch.Tensor, bias: torch.Tensor | None, asked: Asked, rows: slice
) -> torch.Tensor:
    """(rows, V) fp32, capped, tempered and constrained, in memory of its own."""
    with torch.autocast(hidden.device.type, enabled=False):
        logits = product.linear(hidden[rows], table, bias, half=asked.half)
    for block in _blocks(rows, logits):
        part = logits[block.start - rows.start : block.stop - rows.start]
        if asked.cap:
            part.div_(asked.cap).tanh_().mul_(asked.cap)
        part.div_(asked.temperature[block, None])
        if (forbidden := asked.forbidden(block, part)) is not None:
            part.masked_fill_(forbidden, IMPOSSIBLE)
    return logits


def _differentiate(
    part: torch.Tensor,  # (block, V) logits, which become the gradient to what the head gave
    asked: Asked,
    block: slice,
    norm: torch.Tensor,
    entropy: torch.Tensor,
    grads: tuple[torch.Tensor | None, ...],
) -> None:
    to_logprobs, to_entropy = (None if g is None else g[block, None] for g in grads)
    heat = asked.temperature[block, None]
    bend = (part * (heat / asked.cap)).square_().neg_().add_(1) if asked.cap else None
    forbidden = asked.forbidden(block, part) if bend is not None else None
    part.sub_(norm[block, None])
    slope = 0.0 if to_logprobs is None else -to_logprobs
    if to_entropy is not None:
        factor = (part + entropy[block, None]).mul_(-to_entropy).add_(slope)
        part.exp_().mul_(factor.div_(heat))
    else:
        part.exp_().mul_(slope / heat)
    if to_logprobs is not None:
        part.scatter_add_(1, asked.tokens[block, None], to_logprobs / heat)
    if bend is not None:
        part.mul_(bend)
    if forbidden is not None:
        part.masked_fill_(forbidden, 0.0)


def _sum(before: torch.Tensor | None, more: torch.Tensor) -> torch.Tensor:
    return more if before is None else before.add_(more)


def _table(weight: torch.Tensor, asked: Asked) -> torch.Tensor:
    """The weights as all chunks multiply by them; the kernel rounds them itself."""
    return weight.to(torch.bfloat16) if asked.half and weight.device.type != "cpu" else weight
