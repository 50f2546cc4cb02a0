"""Divergences in chunks, against torch's own differentiation of the plain formula over whole rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from made import batch as made_batch

from sojourn.backends.torch.trainer import head
from sojourn.backends.torch.trainer.divergence import TeacherRows, TeacherStates, TeacherTopTokens, divergence
from sojourn.losses.distill import Distill

HIDDEN, VOCABULARY = 16, 300


def asked_of(linear, rows: int, cap: float | None = None) -> head.HeadQuery:
    """Every weighed token of a made batch, at several temperatures, some among few tokens."""
    batch = made_batch(np.random.default_rng(0))
    where = np.flatnonzero(batch.weight)
    temperature = np.where(np.arange(len(batch)) % 3, 0.7, 1.3).astype(np.float32)
    allowed = {int(i): np.unique([batch.tokens[i], 5, 7, 11]) for i in where[::4]}
    batch = replace(batch, temperature=temperature, allowed=allowed)
    chunk = rows * 4 * linear.out_features
    return head.HeadQuery.of(batch, where, batch.tokens[where], linear, cap=cap, bf16=False, chunk_bytes=chunk)


def distributions(states, weight, bias, asked, cap) -> torch.Tensor:
    logits = states @ weight.T + (0 if bias is None else bias)
    if cap:
        logits = cap * torch.tanh(logits / cap)
    logits = logits / asked.temperature[:, None]
    mask = torch.zeros_like(logits, dtype=torch.bool)
    for row, ids in asked.allowed.items():
        mask[row] = True
        mask[row, ids] = False
    return logits.masked_fill(mask, -1e9)


def reverse(hidden, linear, asked, teacher) -> torch.Tensor:
    q = distributions(hidden, linear.weight, linear.bias, asked, asked.cap)
    p = distributions(*teacher.said[:3], asked, teacher.said.cap)
    size = min(q.shape[1], p.shape[1])
    q, p = q[:, :size].log_softmax(1), p[:, :size].log_softmax(1)
    return (q.exp() * (q - p)).sum(1)


def ours(hidden, linear, asked, teacher) -> torch.Tensor:
    return divergence(hidden, linear, asked, teacher=teacher, loss=Distill())


def gradients(read, hidden, linear, asked, teacher) -> list[torch.Tensor]:
    hidden = hidden.clone().requires_grad_()
    linear.zero_grad()
    found = read(hidden, linear, asked, teacher)
    (found * torch.arange(1, 1 + len(hidden))).sum().backward()
    return [found.detach(), hidden.grad, *(p.grad for p in linear.parameters())]


@pytest.mark.parametrize("rows", [1, 10, 1000])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("size", [VOCABULARY, VOCABULARY - 4, VOCABULARY + 4])
def test_values_and_gradients_are_those_of_the_plain_formula(rows, cap, size):
    """Also where the teacher has another width, soft cap and length of its vocabulary."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(HIDDEN, VOCABULARY)
    asked = asked_of(linear, rows, cap)
    hidden = 3 * torch.randn(len(asked.tokens), HIDDEN)
    states = 3 * torch.randn(len(hidden), 2 * HIDDEN)
    said = TeacherStates(states, torch.randn(size, 2 * HIDDEN) / 5, torch.randn(size), 3.0)
    teacher = TeacherRows(torch.arange(len(states)), said)
    for one, other in zip(*(gradients(read, hidden, linear, asked, teacher) for read in (ours, reverse)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 10, 1000])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_a_teachers_top_tokens_are_compared_as_its_states_are(rows, cap):
    """At temperature 1 and among all tokens, where the loss tells as many of them apart."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(HIDDEN, VOCABULARY)
    asked = asked_of(linear, rows, cap)
    asked = replace(asked, temperature=torch.ones_like(asked.temperature), allowed={})
    hidden, states = 3 * torch.randn(2, len(asked.tokens), HIDDEN)
    said = TeacherStates(states, torch.randn(VOCABULARY, HIDDEN) / 5, torch.randn(VOCABULARY), None)
    top = distributions(*said[:3], asked, None).log_softmax(1).topk(9, 1)
    at, loss = torch.arange(len(states)), Distill(top_k=5)
    here, there = (
        gradients(lambda *asked: divergence(*asked[:3], teacher=asked[3], loss=loss), hidden, linear, asked, teacher)
        for teacher in (TeacherRows(at, said), TeacherRows(at, TeacherTopTokens(top.indices, top.values)))
    )
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_the_logits_of_two_models_take_no_more_memory_than_those_of_one(monkeypatch):
    linear = torch.nn.Linear(HIDDEN, VOCABULARY)
    asked = asked_of(linear, 8)
    hidden, sizes, real = torch.randn(len(asked.tokens), HIDDEN), [], head.logits_of

    def counted(hidden, table, bias, query, rows):
        sizes.append(rows.stop - rows.start)
        return real(hidden, table, bias, query, rows)

    monkeypatch.setattr(head, "logits_of", counted)
    ours(
        hidden,
        linear,
        asked,
        TeacherRows(
            torch.arange(len(hidden)), TeacherStates(hidden, linear.weight.detach(), linear.bias.detach(), None)
        ),
    )
    assert len(sizes) > 4
    assert max(sizes) == asked.chunk_rows // 2
