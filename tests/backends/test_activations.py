"""Layers that are computed again keep less, by the budget, and give the same gradients."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from engine_models import VOCABULARY, build
from made import batch as made_batch
from torch.autograd.graph import saved_tensors_hooks

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.models.lora import adapted as with_adapters
from sojourn.backends.torch.trainer import activations
from sojourn.backends.torch.trainer.activations import Cost
from sojourn.backends.torch.trainer.decoder import base_of
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.pass_io import MicroBatch
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.losses.ppo import PPO
from sojourn.models.spec import Lora
from sojourn.optim import Optim


async def nowhere(weights, version):
    """Takes published weights and forgets them."""


def trainer(model, activation_bytes: float, **options) -> TorchTrainer:
    made = TorchTrainer(
        ModelPasses(model, bf16=False, token_budget=10_000, activation_bytes=activation_bytes, **options), nowhere
    )
    made.begin(Optim(), 1, reference=False)
    return made


def adapted(name: str):
    return with_adapters(build(name), Lora(rank=4), torch.float32)


def cost(model) -> Cost:
    made = trainer(model, 1.0)
    return activations.measure(activations.layers_of(base_of(model).get_decoder()), made.passes.decoder.probe)


@pytest.mark.parametrize("make", [build, adapted])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
@pytest.mark.parametrize("share", [0.0, 0.5])
async def test_computing_layers_again_changes_nothing(name, make, share):
    batch = made_batch(np.random.default_rng(0), vocabulary=VOCABULARY)
    whole, bounded = trainer(make(name), float("inf")), trainer(make(name), 0.0)
    bounded.passes.decoder.activation_bytes = share * sum(cost(make(name)).layers) * len(batch)
    assert 0 < len(bounded.passes.decoder.layers_to_recompute(len(batch))) <= 3
    metrics = [await made.forward_backward(batch, [PPO()]) for made in (whole, bounded)]
    assert metrics[0] == metrics[1]
    for key, p in whole.trainable.items():
        assert torch.equal(bounded.trainable[key].grad, p.grad), key


def kept_bytes(made: TorchTrainer, batch) -> int:
    """At the end of the forward pass, all storages that autograd holds, the parameters' own left out."""
    parameters = {p.untyped_storage().data_ptr() for p in made.model.parameters()}
    held = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in parameters:
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    micro_batch = MicroBatch.of(
        batch, np.arange(len(batch.offsets) - 1), [np.arange(a, b) for a, b in pairwise(batch.offsets)]
    )
    again = activations.checkpointed(made.passes.decoder.layers_to_recompute(len(micro_batch.tree.tokens)))
    with again, saved_tensors_hooks(keep, lambda tensor: tensor):
        out = made.passes.forward(
            micro_batch, np.flatnonzero(batch.weight), frozenset(), batch.tokens[batch.weight > 0]
        )
    assert out.logprobs.requires_grad
    return sum(storage.nbytes() for storage in held.values())


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.7])
def test_what_is_kept_falls_to_the_budget(share, kernel):
    batch = made_batch(np.random.default_rng(0))

    def made(activation_bytes: float) -> TorchTrainer:
        return trainer(loading.load("tiny:layers=8,hidden=64", "fp32", 0).model, activation_bytes, kernel=kernel)

    free = made(float("inf"))
    each = activations.measure(activations.layers_of(free.model.get_decoder()), free.passes.decoder.probe)
    layers = sum(each.layers) * len(batch)
    least = each.inputs * len(each.layers) * len(batch)
    rest = kept_bytes(made(1.0), batch) - least  # embeddings, the head
    assert 0 < rest < layers / 8
    kept = kept_bytes(made(share * layers), batch)
    assert kept <= 1.05 * (max(share * layers, least) + rest)
    assert kept < kept_bytes(free, batch) <= 1.05 * (layers + rest)


def test_as_many_layers_as_needed_are_computed_again():
    each = Cost((100, 100, 100, 100), 10)
    assert [each.count_to_recompute(2, budget) for budget in (800, 799, 620, 440, 260, 80, 1)] == [0, 1, 1, 2, 3, 4, 4]


def test_a_model_is_left_as_it_was():
    """A copy of the model must not call the layers of the first; a kernel's layers stay."""
    for name in ("gemma3", "llama"):
        model = build(name)
        made = trainer(model, 1.0)
        before = [vars(layer).get("forward") for layer in model.model.layers]
        with activations.checkpointed(made.passes.decoder.layers_to_recompute(10)):
            assert vars(model.model.layers[0])["forward"] is not before[0]
        assert [vars(layer).get("forward") for layer in model.model.layers] == before
        assert all(("forward" in vars(layer)) == (name == "llama") for layer in copy.deepcopy(model).model.layers)
