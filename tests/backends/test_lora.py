"""Adapters: only they are trained; samplers are given the model with them added in or, in bf16, they alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_models import build
from made import batch as made_batch
from numpy.random import default_rng
from transformers import AutoConfig, AutoModelForCausalLM

from sojourn.backends.torch.backend import Torch
from sojourn.backends.torch.models import loading
from sojourn.backends.torch.models.lora import adapted as with_adapters
from sojourn.backends.torch.models.lora import merged
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.errors import ModelError
from sojourn.losses.nll import NLL
from sojourn.models.spec import Lora, Model
from sojourn.optim import Optim
from sojourn.render.auto import Auto
from sojourn.types import Prompt


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


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "not"])  # of this model nothing is
@pytest.mark.parametrize("kernel", [True, False])
async def test_an_update_in_bf16_reaches_the_sampler_as_the_trainer_computes_it(kernel, compiled):
    """Merged into weights in bf16, which are then rounded, adapters would be sampled as others than they are."""
    model = Model(name="tiny", dtype="bf16", lora=Lora(rank=4))
    opened = Torch(kernel=kernel, compile=compiled, memory_gb=0.05).open(model, Auto(), 0)
    trainer, batch = opened.trainer, made_batch(default_rng(0), groups=8)
    trainer.begin(Optim(lr=1e-3), 9, reference=False)

    async def scores():
        sequences = np.split(batch.tokens, batch.offsets[1:-1])
        sampled = np.concatenate([[0.0, *await opened.sampler.score(Prompt(tokens))] for tokens in sequences])
        scored = (batch.weight != 0) & ~np.isin(np.arange(len(batch)), batch.offsets)
        return (await trainer.forward(batch)).logprobs[scored], sampled[scored]

    before, sampled_before = await scores()
    await trainer.forward_backward(batch, [NLL()])
    await trainer.optim_step()
    await trainer.publish()
    after, sampled_after = await scores()
    assert np.abs(after - before).mean() > 0.2
    assert np.corrcoef(sampled_after - sampled_before, after - before)[0, 1] > 0.99
    assert np.abs(sampled_after - after).mean() < 1.2 * np.abs(sampled_before - before).mean()
    await opened.sampler.close()
    opened.trainer.close()


def test_adapters_are_merged_where_nothing_is_rounded_or_the_sampler_takes_none(tmp_path):
    model = Model(name="tiny", dtype="bf16", lora=Lora(rank=4))
    assert Torch().unmerged(model) == model.lora
    build("phi").save_pretrained(tmp_path)
    compiled = Torch(compile=True), replace(model, name=str(tmp_path))
    for backend, other in ((Torch(), replace(model, dtype="fp32")), compiled):
        assert backend.unmerged(other) is None


def experts(kind: str, **more):
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **heads, **more))


@pytest.mark.filterwarnings("ignore:The following .*_pattern keys")  # of peft, about Mixtral
def test_adapters_of_what_is_no_linear_layer_are_refused():
    with pytest.raises(ModelError, match=r"^model.lora: peft adapts '.*' of a model of the kind 'mixtral'"):
        with_adapters(experts("mixtral", num_local_experts=4), Lora(), torch.float32)


def test_fused_experts_have_no_adapters_and_the_rest_has():
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    model = with_adapters(experts("qwen2_moe", shared_expert_intermediate_size=16, **sizes), Lora(), torch.float32)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any("q_proj" in name for name in trained)
    assert not any(".experts." in name for name in trained)
