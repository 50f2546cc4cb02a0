"""A copy of the policy's trainer: it learns by itself, shares what is frozen, and its state is all of it."""

import copy

import numpy as np
import torch
from made import batch as made_batch

from sojourn.abilities import Copies
from sojourn.backends.torch.models import loading
from sojourn.backends.torch.models.lora import adapted
from sojourn.backends.torch.trainer.copies import CopyableTrainer
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.losses.nll import NLL
from sojourn.models.spec import Lora
from sojourn.optim import Optim
from sojourn.protocols import Stateful

NAME = "tiny:layers=1,hidden=64"
sent = []


async def send(weights, version):
    sent.append(version)


def trainer(lora=None, kind=CopyableTrainer):
    model = loading.load(NAME, "fp32", 0).model
    model = model if lora is None else adapted(model, lora, torch.float32)
    made = kind(ModelPasses(model, bf16=False, token_budget=10_000), send)
    made.begin(Optim(lr=1e-2), 10, reference=False)
    return made


async def learn(made, seed):
    metrics = await made.forward_backward(made_batch(np.random.default_rng(seed)), [NLL()])
    return {**metrics, **await made.optim_step()}


def test_only_the_policys_trainer_can_be_copied():
    policy = trainer()
    other = policy.copy(Optim(), reference=False)
    assert isinstance(policy, Copies)
    assert isinstance(other, Stateful)
    assert not isinstance(other, Copies)
    assert not isinstance(trainer(kind=TorchTrainer), Copies)


async def test_a_copy_learns_apart_from_the_policy_and_reaches_no_sampler():
    policy, batch = trainer(), made_batch(np.random.default_rng(0))
    await learn(policy, 1)
    before = (await policy.forward(batch)).logprobs
    other = policy.copy(Optim(lr=1e-2), reference=True)
    np.testing.assert_array_equal((await other.forward(batch)).logprobs, before)
    await learn(other, 2)
    sent.clear()
    await other.publish()
    assert sent == []
    assert not np.array_equal((await other.forward(batch)).logprobs, before)
    np.testing.assert_array_equal((await other.forward(batch, reference=True)).logprobs, before)
    np.testing.assert_array_equal((await policy.forward(batch)).logprobs, before)


async def test_the_state_of_a_copy_is_all_that_it_needs_to_go_on():
    policy, batch = trainer(), made_batch(np.random.default_rng(0))
    first = policy.copy(Optim(lr=1e-2), reference=True)
    await learn(first, 1)
    state = copy.deepcopy(first.state())
    assert sorted(state) == ["moments", "reference", "step", "weights"]  # as checkpoints have them
    await learn(policy, 2)
    again = policy.copy(Optim(lr=1e-2), reference=True)
    again.restore(state)
    assert await learn(again, 3) == await learn(first, 3)
    for reference in (False, True):
        one, other = [(await made.forward(batch, reference=reference)).logprobs for made in (first, again)]
        np.testing.assert_array_equal(one, other)


def test_a_copy_shares_the_frozen_weights_alone():
    policy = trainer(Lora(rank=2))
    other = policy.copy(Optim(), reference=False)
    own = dict(policy.model.named_parameters())
    for name, parameter in other.model.named_parameters():
        assert (parameter is own[name]) == (not parameter.requires_grad), name
