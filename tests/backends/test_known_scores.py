"""A model that we would compute otherwise than transformers does is refused when it is opened."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from sojourn.backends.torch.sampler.engine import Engine
from sojourn.backends.torch.trainer.decoder import Decoder
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.errors import ModelError
from sojourn.losses.distill import Distill
from sojourn.types import Batch

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SCALED = {
    "granite": {"logits_scaling": 8.0},
    "cohere": {"logit_scale": 0.0625},
    "gemma2": {"final_logit_softcapping": 5.0, "head_dim": 16},
}


def build(kind: str, **more):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SIZES, **SCALED.get(kind, {}), **more})
    model = AutoModelForCausalLM.from_config(config).eval()
    model.set_attn_implementation("eager")
    return model


def two_sequences() -> Batch:
    """Returns two sequences of 20 tokens that share 8, of which the last 6 carry weight."""
    random = np.random.default_rng(1)
    tokens = random.integers(3, 97, 40)
    tokens[20:28] = tokens[:8]
    sequence, zeros = np.repeat([0, 1], 20), np.zeros(40, dtype=np.float32)
    weight = np.tile(np.r_[np.zeros(14), np.ones(6)], 2).astype(np.float32)
    temperature = np.full(40, 0.7, dtype=np.float32)
    turn = np.where(weight > 0, sequence, -1)
    return Batch(tokens, sequence, weight, zeros, zeros + 1, temperature, sequence, turn)


def plain_logprobs(model, batch: Batch, temperature: float = 0.7) -> torch.Tensor:
    """Returns transformers' own log-probabilities of the tokens that carry weight: (12,)."""
    rows = torch.from_numpy(batch.tokens).reshape(2, 20)
    logprobs = (model(input_ids=rows).logits / temperature).log_softmax(-1)
    return logprobs[:, 13:-1].gather(2, rows[:, 14:, None])[..., 0].flatten()


class Nll:
    needs = frozenset()
    zero_at_zero_advantage = False

    def __call__(self, out, batch):
        return -out.logprobs, {}


@pytest.mark.parametrize("kind", SCALED)
async def test_the_trainer_reads_the_scale_and_the_cap_that_a_model_gives_its_logits(kind):
    model, batch = build(kind), two_sequences()
    expected = plain_logprobs(model, batch)
    (-expected.sum()).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    trained = copy.deepcopy(model)
    trained.zero_grad()
    trainer = TorchTrainer(ModelPasses(trained, bf16=False, token_budget=4096), nowhere)
    scored = await trainer.forward(batch)
    np.testing.assert_allclose(scored.logprobs[batch.weight > 0], expected.detach(), atol=1e-4)
    await trainer.forward_backward(batch, [Nll()])
    for name, parameter in trainer.trainable.items():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=1e-3)
    trainer.close()


def test_the_cap_of_a_model_with_a_text_configuration_is_read_from_that():
    text = {**SIZES, "final_logit_softcapping": 5.0, "head_dim": 16, "global_head_dim": 16, "num_kv_shared_layers": 0}
    text |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 97, "initializer_range": 0.9}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = type(AutoConfig.for_model("gemma4"))(text_config=text, vision_config=vision)
    model, batch = AutoModelForCausalLM.from_config(config).eval(), two_sequences()
    expected = plain_logprobs(model, batch).detach()
    scored = ModelPasses(model, bf16=False, token_budget=4096).score(batch, frozenset(), batch.tokens)
    np.testing.assert_allclose(scored.logprobs[batch.weight > 0], expected, atol=1e-4)


async def test_a_teacher_is_compared_by_the_scale_of_its_own_logits():
    policy, teacher, batch = build("llama"), build("granite"), two_sequences()
    rows = torch.from_numpy(batch.tokens).reshape(2, 20)
    own, other = ((model(input_ids=rows).logits[:, 13:-1] / 0.7).log_softmax(-1) for model in (policy, teacher))
    expected = (own.exp() * (own - other)).sum(-1).mean().item()
    trainer = TorchTrainer(ModelPasses(policy, bf16=False, token_budget=4096), nowhere)
    trainer.teachers.frozen["teacher"] = ModelPasses(teacher, bf16=False, token_budget=4096)
    said = await trainer.ask_models({"teacher": batch})
    told = dataclasses.replace(batch, streams={"teacher": said})
    metrics = await trainer.forward_backward(told, [Distill()])
    assert metrics["loss"] / 12 == pytest.approx(expected, rel=1e-3)
    trainer.close()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("gpt_neo", {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}),
        ("gptj", {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 256}),
        ("falcon", {}),
        ("gpt_oss", {"num_local_experts": 4, "head_dim": 16}),
    ],
)
def test_models_whose_attention_sees_more_than_the_trainer_hands_to_it_are_refused(kind, more):
    model = build(kind, **more)
    with pytest.raises(ModelError, match=r"computes a model of the kind .* otherwise than transformers does"):
        Decoder(model, bf16=True)


@pytest.mark.parametrize("kind", ["stablelm", "llama4_text"])
def test_models_that_the_trainer_cannot_pass_are_refused_in_one_sentence(kind):
    more = {"head_dim": 16, "num_local_experts": 2, "intermediate_size_mlp": 64} if kind == "llama4_text" else {}
    with pytest.raises(ModelError, match=f"cannot compute a model of the kind '{kind}'"):
        Decoder(build(kind, **more), bf16=False)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("diffllama", {}),
        (
            "llama4_text",
            {"head_dim": 16, "num_local_experts": 2, "intermediate_size_mlp": 64, "attention_chunk_size": 8},
        ),
    ],
)
def test_models_that_the_engine_samples_otherwise_are_refused(kind, more):
    with pytest.raises(ModelError, match=r"the sampler .* computes a model of the kind .* otherwise"):
        Engine(build(kind, **more), stops=(2,), max_context=64, memory_bytes=1 << 24)


@pytest.mark.parametrize(
    ("kind", "says"), [("stablelm", "does not hand its arguments on"), ("doge", "a mask of its own")]
)
def test_the_engine_says_what_it_misses_in_a_model_that_it_refuses(kind, says):
    with pytest.raises(ModelError, match=f"{says}.*cannot sample from such a model"):
        Engine(build(kind), stops=(2,), max_context=64, memory_bytes=1 << 24)


def test_the_check_leaves_random_numbers_and_gradients_alone():
    model = build("llama")
    before = torch.get_rng_state()
    Decoder(model, bf16=True)
    assert torch.equal(before, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


async def nowhere(weights, version) -> None:
    pass
