"""Divergences of the policy's distributions from a teacher's, in the place of each token, in bounded memory.

Like the vocabulary head's own pass, this one divides the rows into chunks, so that the logits of both models are held
for one chunk only. The gradient by the policy's logits is in closed form, from the loss that compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from sojourn.abilities import Compared, ComparesDistributions, ComparesLikeliest
from sojourn.backends.torch.kernels import product
from sojourn.backends.torch.trainer import head
from sojourn.backends.torch.trainer.head import HeadQuery

CompareBlock = Callable[[torch.Tensor, slice], Compared]  # the policy's logits (r, V) of a block of rows


class TeacherStates(NamedTuple):
    """Holds what a teacher whose weights are here says of n tokens: its last hidden states before them, and its
    vocabulary head, which computes its distributions from them."""

    states: torch.Tensor  # (n, H)
    weight: torch.Tensor  # (V, H)
    bias: torch.Tensor | None  # (V,)
    cap: float | None  # soft cap of the logits
    scale: float = 1.0  # of the logits

    def pick(self, rows: torch.Tensor) -> TeacherStates:
        return self._replace(states=self.states[rows])

    def to(self, device: torch.device) -> TeacherStates:
        return self._replace(states=self.states.to(device))

    def comparison(self, loss: ComparesDistributions, query: HeadQuery, rows: slice) -> CompareBlock:
        """Returns what compares blocks within these rows, for which it holds the teacher's logits."""
        table = head.table_of(self.weight, query)
        logits = head.logits_of(self.states, table, self.bias, query.of_other(self.cap, self.scale), rows)

        def compare(own: torch.Tensor, block: slice) -> Compared:
            other = logits[block.start - rows.start : block.stop - rows.start]
            size = min(own.shape[1], other.shape[1])
            return loss.compare(own[:, :size].log_softmax(1), other[:, :size].log_softmax(1))

        return compare


class TeacherTopTokens(NamedTuple):
    """Holds what a teacher that is asked elsewhere says of n tokens: its k likeliest tokens in the place of each,
    likeliest first, at temperature 1 and over its whole vocabulary. Where there are fewer, a token is -1."""

    tokens: torch.Tensor  # (n, k)
    logprobs: torch.Tensor  # (n, k)

    def pick(self, rows: torch.Tensor) -> TeacherTopTokens:
        return TeacherTopTokens(self.tokens[rows], self.logprobs[rows])

    def to(self, device: torch.device) -> TeacherTopTokens:
        return TeacherTopTokens(self.tokens.to(device), self.logprobs.to(device))

    def comparison(self, loss: ComparesDistributions, query: HeadQuery, rows: slice) -> CompareBlock:
        """Returns what compares blocks of rows."""
        if not isinstance(loss, ComparesLikeliest):
            raise TypeError(f"{type(loss).__name__} compares whole distributions, but the teacher gives top tokens")

        def compare(own: torch.Tensor, block: slice) -> Compared:
            return loss.compare_likeliest(own.log_softmax(1), self.tokens[block], self.logprobs[block])

        return compare


class TeacherRows(NamedTuple):
    """Holds what a teacher says of n tokens; `at` says which tokens of a pass these are."""

    at: torch.Tensor  # (n,)
    said: TeacherStates | TeacherTopTokens


def divergences(
    hidden: torch.Tensor, linear: Any, query: HeadQuery, *, teachers: Sequence[TeacherRows], loss: ComparesDistributions
) -> torch.Tensor:
    """Returns what `loss` says of each row's distribution and that of its teacher (n,), with gradients. Each row has
    one of the teachers."""
    if len(teachers) == 1:
        return divergence(hidden, linear, query, teacher=teachers[0], loss=loss)
    values = hidden.new_zeros(len(hidden), dtype=torch.float32)
    for teacher in teachers:
        found = divergence(hidden[teacher.at], linear, query.pick(teacher.at), teacher=teacher, loss=loss)
        values = values.index_put((teacher.at,), found)
    return values


def divergence(
    hidden: torch.Tensor, linear: Any, query: HeadQuery, *, teacher: TeacherRows, loss: ComparesDistributions
) -> torch.Tensor:
    """Returns what `loss` says of each row's two distributions (n,), with gradients to the hidden states of the
    policy and to its vocabulary head.

    Both are at the temperature and among the tokens that the query allows. Where one vocabulary is padded to a greater
    length, only the tokens that both have are compared.
    """
    halved = replace(query, chunk_rows=max(1, query.chunk_rows // 2))  # for the logits of two models
    return _Divergence.apply(hidden, linear.weight, linear.bias, halved, teacher, loss)  # type: ignore[return-value]


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        query: HeadQuery,
        teacher: TeacherRows,
        loss: ComparesDistributions,
    ) -> torch.Tensor:
        values = hidden.new_zeros(len(hidden), dtype=torch.float32)
        gradients = hidden.new_zeros(0)
        table = head.table_of(weight, query)
        for rows in query.chunks():
            gradients = _compared(hidden, table, bias, query, teacher, loss, rows, values)
        ctx.save_for_backward(hidden, weight, bias)
        ctx.query, ctx.teacher, ctx.loss = query, teacher, loss
        ctx.kept = gradients if len(hidden) <= query.chunk_rows and any(ctx.needs_input_grad) else None
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden, weight, bias = ctx.saved_tensors
        query, table, hidden_grad = ctx.query, head.table_of(weight, ctx.query), torch.zeros_like(hidden)
        weight_grad = bias_grad = None
        for rows in query.chunks():
            gradients = ctx.kept
            if gradients is None:
                gradients = _compared(hidden, table, bias, query, ctx.teacher, ctx.loss, rows)
            ctx.kept = None  # overwritten here
            gradients.mul_(grad[rows, None])
            hidden_grad[rows] = product.linear(gradients, table.T, bf16=query.bf16)
            if ctx.needs_input_grad[1]:
                weight_grad = head.added(weight_grad, product.linear(gradients.T, hidden[rows].T, bf16=query.bf16))
            if ctx.needs_input_grad[2]:
                bias_grad = head.added(bias_grad, gradients.sum(0))
        parameter_grads = (None if g is None else g.to(weight.dtype) for g in (weight_grad, bias_grad))
        return hidden_grad, *parameter_grads, None, None, None


def _compared(
    hidden: torch.Tensor,
    table: torch.Tensor,
    bias: torch.Tensor | None,
    query: HeadQuery,
    teacher: TeacherRows,
    loss: ComparesDistributions,
    rows: slice,
    values: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the gradient of each row's value by the products of the policy's head (rows, V), and fills in `values`
    (n,)."""
    logits = head.logits_of(hidden, table, bias, query, rows)
    compare = teacher.said.comparison(loss, query, rows)
    for block in head.blocks(rows, logits):
        own = logits[block.start - rows.start : block.stop - rows.start]
        forbidden = query.forbidden(block, own)
        temperature = query.temperature[block, None]
        found = compare(own, block)
        size = found.gradient.shape[1]
        if values is not None:
            values[block] = found.value
        gradient = found.gradient / temperature
        if query.cap:  # the gradient of tanh is 1 - tanh^2
            gradient.mul_(1 - (own[:, :size] * (temperature / query.cap)).square_())
        own[:, :size], own[:, size:] = gradient, 0.0
        if forbidden is not None:
            own.masked_fill_(forbidden, 0.0)
    return logits
