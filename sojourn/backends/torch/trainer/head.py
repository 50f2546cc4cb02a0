"""The vocabulary head: computes the log-probability of one token per row and the row's entropy in bounded memory.

The rows are divided into chunks. The logits of a single chunk are kept for the backward pass; with several chunks, they
are recomputed there. Both passes are in closed form (d logprob = onehot - p; d entropy = -p (log p + entropy)), and
work on the logits is done in blocks that stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from sojourn.backends.torch.kernels import product
from sojourn.errors import ModelError
from sojourn.types import Batch, IntArray

CHUNK_BYTES = 2**28  # of fp32 logits
BLOCK_BYTES = 2**21
IMPOSSIBLE = -1e30  # finite, so that probability 0 times its logarithm is 0


class HeadOutput(NamedTuple):
    logprobs: torch.Tensor  # (n,)
    entropy: torch.Tensor  # (n,)


@dataclass(frozen=True)
class HeadQuery:
    """Says which token to score in each of the n rows, at which temperature, and among which allowed tokens."""

    tokens: torch.Tensor  # (n,)
    temperature: torch.Tensor  # (n,) by which the head's products are divided: that of the sampler, over `scale`
    allowed: Mapping[int, torch.Tensor]  # row -> token ids; rows that are absent may be any token
    cap: float | None  # soft cap of the logits
    scale: float  # by which the model multiplies its logits
    bf16: bool  # whether matrix products round their factors to bf16
    chunk_rows: int

    @classmethod
    def of(
        cls,
        batch: Batch,
        where: IntArray,
        tokens: IntArray,
        head: torch.nn.Linear,
        *,
        cap: float | None,
        scale: float = 1.0,
        bf16: bool,
        chunk_bytes: int,
    ) -> HeadQuery:
        """Asks for `tokens` (n,) at the indices `where` (n,) of a batch, under the temperature and the allowed tokens
        of those that were sampled there.

        The logits of a chunk take at most `chunk_bytes`, or are one row.
        """
        device = head.weight.device
        allowed = {row: batch.allowed[int(i)] for row, i in enumerate(where) if int(i) in batch.allowed}
        return cls(
            torch.from_numpy(tokens).to(device),
            torch.from_numpy(batch.temperature[where]).to(device) / scale,
            {row: torch.from_numpy(np.asarray(ids, dtype=np.int64)).to(device) for row, ids in allowed.items()},
            cap,
            scale,
            bf16,
            max(1, chunk_bytes // (4 * head.out_features)),
        )

    @classmethod
    def of_model(
        cls, base: Any, batch: Batch, where: IntArray, tokens: IntArray, *, bf16: bool, chunk_bytes: int = CHUNK_BYTES
    ) -> HeadQuery:
        """Asks for tokens as `of` does, by the logits that a model of transformers returns."""
        text, head = base.config.get_text_config(), base.get_output_embeddings()
        multiplied = (getattr(text, name, None) or 1.0 for name in ("logit_scale", "lm_head_multiplier"))
        return cls.of(
            *(batch, where, tokens, head),
            cap=getattr(text, "final_logit_softcapping", None),
            scale=prod(multiplied) / (getattr(text, "logits_scaling", None) or 1.0),
            bf16=bf16,
            chunk_bytes=chunk_bytes,
        )

    def of_other(self, cap: float | None, scale: float) -> HeadQuery:
        """Returns the same question to another model, whose logits have another cap and scale."""
        return replace(self, cap=cap, scale=scale, temperature=self.temperature * (self.scale / scale))

    def pick(self, rows: torch.Tensor) -> HeadQuery:
        """Returns what is asked in some of the rows (m,)."""
        allowed = {place: self.allowed[row] for place, row in enumerate(rows.tolist()) if row in self.allowed}
        return replace(self, tokens=self.tokens[rows], temperature=self.temperature[rows], allowed=allowed)

    def chunks(self) -> Iterator[slice]:
        return slices(0, len(self.tokens), self.chunk_rows)

    def forbidden(self, block: slice, like: torch.Tensor) -> torch.Tensor | None:
        """Returns a mask, True at the tokens that a row of the block does not allow; None where all are allowed."""
        rows = [row for row in range(block.start, block.stop) if row in self.allowed]
        if not rows:
            return None
        mask = torch.zeros_like(like, dtype=torch.bool)
        for row in rows:
            mask[row - block.start] = True
            mask[row - block.start, self.allowed[row]] = False
        return mask


def score(hidden: torch.Tensor, head: Any, query: HeadQuery) -> HeadOutput:
    """Scores tokens from the hidden states that predict them (n, H), with gradients to those and to the head.

    Raises `ModelError` where the head is not linear.
    """
    if type(head) is not torch.nn.Linear:
        raise ModelError(
            f"the model's output layer is a {type(head).__name__}: expected a plain torch.nn.Linear: the trainer "
            "computes its gradient in closed form"
        )
    return HeadOutput(*_Head.apply(hidden, head.weight, head.bias, query))


@torch.no_grad()
def top_token(hidden: torch.Tensor, head: Any, query: HeadQuery) -> torch.Tensor:
    """Returns the most likely of the allowed tokens of each row: (n,)."""
    table = table_of(head.weight, query)
    parts = [logits_of(hidden, table, head.bias, query, rows).argmax(1) for rows in query.chunks()]
    return torch.cat([query.tokens[:0], *parts])


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, query: HeadQuery
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count, table = len(hidden), table_of(weight, query)
        logsumexp, logprobs, entropy = (hidden.new_zeros(count, dtype=torch.float32) for _ in range(3))
        logits = hidden.new_zeros(0)
        for rows in query.chunks():
            logits = logits_of(hidden, table, bias, query, rows)
            for block in blocks(rows, logits):
                block_logits = logits[block.start - rows.start : block.stop - rows.start]
                top = block_logits.amax(1, keepdim=True)
                gap = block_logits - top
                exponentials = gap.exp()
                total = exponentials.sum(1)
                chosen = gap.gather(1, query.tokens[block, None])[:, 0]
                logsumexp[block] = top[:, 0] + total.log()
                logprobs[block] = torch.where(chosen <= IMPOSSIBLE, float("-inf"), chosen - total.log())
                entropy[block] = total.log() - exponentials.mul_(gap).sum(1) / total
        ctx.save_for_backward(hidden, weight, bias, logsumexp, entropy)
        ctx.set_materialize_grads(False)
        ctx.query = query
        ctx.kept = logits if count <= query.chunk_rows and any(ctx.needs_input_grad) else None
        return logprobs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, logsumexp, entropy = ctx.saved_tensors
        query, table, hidden_grad = ctx.query, table_of(weight, ctx.query), torch.zeros_like(hidden)
        count = len(hidden)
        # gradients of no row are zeros, too: where weights are sharded, all processes must have them
        weight_grad, bias_grad = (
            None if count or not needed else torch.zeros_like(part, dtype=torch.float32)
            for part, needed in zip((weight, bias), ctx.needs_input_grad[1:3], strict=True)
        )
        for rows in query.chunks():
            logits = ctx.kept if ctx.kept is not None else logits_of(hidden, table, bias, query, rows)
            ctx.kept = None  # overwritten here
            for block in blocks(rows, logits):
                block_logits = logits[block.start - rows.start : block.stop - rows.start]
                _differentiate(block_logits, query, block, logsumexp, entropy, grads)
            hidden_grad[rows] = product.linear(logits, table.T, bf16=query.bf16)
            if ctx.needs_input_grad[1]:
                weight_grad = added(weight_grad, product.linear(logits.T, hidden[rows].T, bf16=query.bf16))
            if ctx.needs_input_grad[2]:
                bias_grad = added(bias_grad, logits.sum(0))
        parameter_grads = (None if g is None else g.to(weight.dtype) for g in (weight_grad, bias_grad))
        return hidden_grad, *parameter_grads, None


def slices(start: int, stop: int, size: int) -> Iterator[slice]:
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


def blocks(rows: slice, logits: torch.Tensor) -> Iterator[slice]:
    """Yields runs of a chunk's rows whose logits fit the processor's cache; on an accelerator, all rows at once."""
    size = BLOCK_BYTES // (4 * logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    return slices(rows.start, rows.stop, max(1, size))


def logits_of(
    hidden: torch.Tensor, table: torch.Tensor, bias: torch.Tensor | None, query: HeadQuery, rows: slice
) -> torch.Tensor:
    """Returns the logits (rows, V) in fp32, soft-capped, over the temperature and constrained, in new memory."""
    with torch.autocast(hidden.device.type, enabled=False):
        logits = product.linear(hidden[rows], table, bias, bf16=query.bf16)
    for block in blocks(rows, logits):
        block_logits = logits[block.start - rows.start : block.stop - rows.start]
        if query.cap:
            block_logits.div_(query.cap).tanh_().mul_(query.cap)
        block_logits.div_(query.temperature[block, None])
        if (forbidden := query.forbidden(block, block_logits)) is not None:
            block_logits.masked_fill_(forbidden, IMPOSSIBLE)
    return logits


def _differentiate(
    block_logits: torch.Tensor,  # (block, V) logits, replaced by the gradient to the head's products
    query: HeadQuery,
    block: slice,
    logsumexp: torch.Tensor,
    entropy: torch.Tensor,
    grads: tuple[torch.Tensor | None, ...],
) -> None:
    logprobs_grad, entropy_grad = (None if g is None else g[block, None] for g in grads)
    temperature = query.temperature[block, None]
    cap_grad = None
    if query.cap:  # the gradient of tanh is 1 - tanh^2
        cap_grad = (block_logits * (temperature / query.cap)).square_().neg_().add_(1)
    forbidden = query.forbidden(block, block_logits) if cap_grad is not None else None
    block_logits.sub_(logsumexp[block, None])
    grad = 0.0 if logprobs_grad is None else -logprobs_grad
    if entropy_grad is not None:
        factor = (block_logits + entropy[block, None]).mul_(-entropy_grad).add_(grad)
        block_logits.exp_().mul_(factor.div_(temperature))
    else:
        block_logits.exp_().mul_(grad / temperature)
    if logprobs_grad is not None:
        block_logits.scatter_add_(1, query.tokens[block, None], logprobs_grad / temperature)
    if cap_grad is not None:
        block_logits.mul_(cap_grad)
    if forbidden is not None:
        block_logits.masked_fill_(forbidden, 0.0)


def added(before: torch.Tensor | None, more: torch.Tensor) -> torch.Tensor:
    return more if before is None else before.add_(more)


def table_of(weight: torch.Tensor, query: HeadQuery) -> torch.Tensor:
    """Returns the weights as every chunk multiplies by them: in bf16 on an accelerator; on a CPU the kernel rounds."""
    return weight.to(torch.bfloat16) if query.bf16 and weight.device.type != "cpu" else weight
