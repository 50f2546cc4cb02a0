"""Adapters: only they are trained, and what samplers are given is the model with them added in."""

import torch
from made import batch as made_batch
from numpy.random import default_rng

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.models.lora import adapted as with_adapters
from sojourn.backends.torch.models.lora import merged
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.losses.nll import NLL
from sojourn.models.spec import Lora
from sojourn.optim import Optim


async def nowhere(weights, version):
    """Takes published weights and forgets them."""


async def test_the_merged_weights_score_like_the_adapted_model():
    torch.manual_seed(0)
    plain = loading.load("tiny", "fp32", 0).model
    adapted = TorchTrainer(
        ModelPasses(
            with_adapters(loading.load("tiny", "fp32", 0).model, Lora(rank=4), torch.float32),
            bf16=False,
            token_budget=999,
        ),
        nowhere,
    )
    adapted.begin(Optim(lr=1e-2), 5, reference=False)
    assert all("lora_" in name for name in adapted.trainable)
    batch = made_batch(default_rng(0))
    before = (await adapted.forward(batch)).logprobs
    for _ in range(3):
        await adapted.forward_backward(batch, [NLL()])
        await adapted.optim_step()
    after = (await adapted.forward(batch)).logprobs
    assert abs(after - before).max() > 0.1
    weights = dict(merged(adapted.model))
    assert weights.keys() == dict(plain.named_parameters()).keys()
    plain.load_state_dict(weights, strict=False)
    whole = TorchTrainer(ModelPasses(plain, bf16=False, token_budget=999), nowhere)
    torch.testing.assert_close(
        torch.from_numpy((await whole.forward(batch)).logprobs), torch.from_numpy(after), atol=1e-4, rtol=1e-4
    )
