"""The gradient over the norm of that of another objective: of the whole update, however it is divided into parts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made import batch as made_batch

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.losses.nll import NLL
from sojourn.losses.papers.st_ppo import STPPO
from sojourn.optim import Optim


async def nowhere(weights, version):
    """Takes published weights and forgets them."""


def step():
    """The policy is so far from the sampler that clips leave out much."""
    batch = made_batch(np.random.default_rng(0))
    return replace(batch, logprobs=batch.logprobs - 3, advantages=40 * batch.advantages)


async def taken(*losses, token_budget=100_000):
    """The metrics of an update, and the norm of the gradient of what was left out."""
    model = loading.load("tiny:layers=1,hidden=64", "fp32", 0).model
    made = TorchTrainer(ModelPasses(model, bf16=False, token_budget=token_budget), nowhere)
    made.begin(Optim(lr=1e-2), 10, reference=False)
    await made.forward_backward(step(), losses)
    sums = made._division._sums.get("left_out", {})
    norm = float(torch.cat([torch.zeros(1), *(g.flatten() for g in sums.values())]).norm())
    return await made.optim_step(), norm


def by_token(floor):
    return STPPO(level="token", floor=floor)


async def test_what_clips_leave_out_holds_the_gradient_back():
    (held, norm), (free, nothing) = await taken(by_token(1e-6)), await taken(by_token(0.0))
    assert norm > 0.1
    assert nothing == 0
    assert "left_out_norm" not in free
    assert held["left_out_norm"] == pytest.approx(norm, rel=1e-4)
    assert held["grad_norm"] == pytest.approx(free["grad_norm"] / norm, rel=1e-4)
    floored, _ = await taken(by_token(2 * norm))
    assert floored["grad_norm"] == pytest.approx(free["grad_norm"] / (2 * norm), rel=1e-4)


async def test_of_several_losses_that_divide_the_gradient_the_greatest_divisor_counts():
    """Objectives of one name are added up, so the norm of what two losses leave out is that of both together."""
    one, both, free = [(await taken(*map(by_token, floors)))[0] for floors in ([1e-6], [1e-6, 1e-6], [0.0, 0.0])]
    assert both["left_out_norm"] == pytest.approx(2 * one["left_out_norm"], rel=1e-4)
    assert both["grad_norm"] == pytest.approx(free["grad_norm"] / both["left_out_norm"], rel=1e-4)
    floor = 3 * both["left_out_norm"]
    floored, _ = await taken(by_token(1e-6), by_token(floor))
    assert floored["grad_norm"] == pytest.approx(free["grad_norm"] / floor, rel=1e-4)


async def test_parts_and_the_gradient_of_other_losses_are_divided_alike():
    (whole, _), (parts, _) = [await taken(by_token(1e-6), NLL(), token_budget=n) for n in (100_000, 1)]
    free, _ = await taken(by_token(0.0), NLL())
    assert parts["left_out_norm"] == pytest.approx(whole["left_out_norm"], rel=1e-4)
    for divided in (whole, parts):
        assert divided["grad_norm"] == pytest.approx(free["grad_norm"] / whole["left_out_norm"], rel=1e-4)
