"""The head's closed form against torch's own differentiation of the plain formula, in chunks of any size."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made import batch as made_batch

from sojourn.backends.torch.trainer import head
from sojourn.errors import ModelError

HIDDEN, VOCABULARY = 16, 300


def asked_of(linear, rows: int, cap: float | None = None, bf16: bool = False) -> head.HeadQuery:
    """Every weighed token of a made batch, at several temperatures, some among few tokens."""
    batch = made_batch(np.random.default_rng(0))
    where = np.flatnonzero(batch.weight)
    temperature = np.where(np.arange(len(batch)) % 3, 0.7, 1.3).astype(np.float32)
    allowed = {int(i): np.unique([batch.tokens[i], 5, 7, 11]) for i in where[::4]}
    batch = replace(batch, temperature=temperature, allowed=allowed)
    chunk = rows * 4 * VOCABULARY
    return head.HeadQuery.of(batch, where, batch.tokens[where], linear, cap=cap, bf16=bf16, chunk_bytes=chunk)


def plain(hidden, linear, asked) -> head.HeadOutput:
    logits = linear(hidden)
    if asked.cap:
        logits = asked.cap * torch.tanh(logits / asked.cap)
    logits = logits / asked.temperature[:, None]
    mask = torch.zeros_like(logits, dtype=torch.bool)
    for row, ids in asked.allowed.items():
        mask[row] = True
        mask[row, ids] = False
    logp = logits.masked_fill(mask, -1e9).log_softmax(1)
    return head.HeadOutput(logp.gather(1, asked.tokens[:, None])[:, 0], -(logp.exp() * logp).sum(1))


def gradients(read, hidden, linear, asked, entropy: bool) -> list[torch.Tensor]:
    hidden = hidden.clone().requires_grad_()
    linear.zero_grad()
    found = read(hidden, linear, asked)
    total = (found.logprobs.exp() * torch.arange(len(hidden))).sum()
    if entropy:
        total = total + (found.entropy**2).sum()
    total.backward()
    return [hidden.grad, *(p.grad for p in linear.parameters())]


@pytest.mark.parametrize("rows", [1, 5, 1000])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("entropy", [False, True])
def test_values_and_gradients_are_those_of_the_plain_formula(rows, cap, entropy):
    torch.manual_seed(0)
    linear = torch.nn.Linear(HIDDEN, VOCABULARY)
    asked = asked_of(linear, rows, cap)
    hidden = 3 * torch.randn(len(asked.tokens), HIDDEN)
    for ours, torchs in zip(head.score(hidden, linear, asked), plain(hidden, linear, asked), strict=True):
        torch.testing.assert_close(ours, torchs, atol=1e-5, rtol=1e-5)
    ours, torchs = (gradients(read, hidden, linear, asked, entropy) for read in (head.score, plain))
    for one, other in zip(ours, torchs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_matrix_products_in_bf16_are_near():
    torch.manual_seed(0)
    linear = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
    asked = asked_of(linear, 5, bf16=True)
    hidden = torch.randn(len(asked.tokens), HIDDEN)
    ours, torchs = (gradients(read, hidden, linear, asked, True) for read in (head.score, plain))
    for one, other in zip(ours, torchs, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.02 * other.norm()


def test_no_more_logits_at_once_than_a_chunk_holds():
    """Counted in the tensors that are alive: forward, and again backward."""
    linear = torch.nn.Linear(HIDDEN, VOCABULARY)
    seen: list[int] = []

    class Counted(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            seen.extend(t.shape[0] for t in torch.utils._pytree.tree_leaves(out) if is_logits(t))
            return out

    def is_logits(t) -> bool:
        return isinstance(t, torch.Tensor) and t.dim() == 2 and t.shape[1] == VOCABULARY

    asked = asked_of(linear, 4)
    with Counted():
        gradients(head.score, torch.randn(len(asked.tokens), HIDDEN), linear, asked, True)
    weights = {HIDDEN}  # the weight's gradient, transposed, is as wide
    assert max(set(seen) - weights) == 4 < len(asked.tokens)


def test_a_token_that_was_not_allowed_is_impossible():
    linear = torch.nn.Linear(HIDDEN, VOCABULARY)
    asked = asked_of(linear, 1000)
    tokens = asked.tokens.clone()
    tokens[0] = next(t for t in range(VOCABULARY) if t not in asked.allowed[0])
    found = head.score(torch.randn(len(tokens), HIDDEN), linear, replace(asked, tokens=tokens))
    assert found.logprobs[0] == -float("inf")
    assert torch.isfinite(found.logprobs[1:]).all()


def test_a_head_that_is_not_linear_is_refused():
    linear = torch.nn.Linear(HIDDEN, VOCABULARY)
    with pytest.raises(ModelError, match="Sequential"):
        head.score(torch.randn(3, HIDDEN), torch.nn.Sequential(linear), asked_of(linear, 5))
