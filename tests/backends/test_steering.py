"""What is steered has a vector added after one layer at the positions that draw tokens, and nowhere else."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from adapted_models import random_adapter, with_merged
from engine_models import STOP, VOCABULARY, build, twin

from sojourn.activation_steering import Steering
from sojourn.backends.ray import vllm_mapping
from sojourn.backends.torch.sampler.engine import Engine
from sojourn.errors import ModelError
from sojourn.train.routed_sampler import RoutedSampler
from sojourn.types import Prompt, SamplingParams

FAMILIES = ["llama", "mistral", "qwen3", "gemma3", "gpt2"]
KERNELS = pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "torch"])
HIDDEN, LAYERS = 48, 3


def open_engine(model, **changes):
    return Engine(twin(model), **{"stops": (STOP,), "max_context": 200, "prefill_chunk": 16, **changes})


def tokens_of(seed, count):
    return np.random.default_rng(seed).integers(4, VOCABULARY, count)


def steering_of(layer, seed=0, size=1.0):
    vector = np.random.default_rng(seed).normal(size=HIDDEN).astype(np.float32) * size
    return Steering(layer, vector.tobytes())


def params(steering, seed=1, model="policy", max_tokens=12):
    return SamplingParams(max_tokens, seed=seed, steering=steering, model=model)


@torch.no_grad()
def steered_logprobs(model, prompt, sample, steering):
    """Computes log-probabilities with a hook on transformers' own layer, in one pass."""
    vector = torch.frombuffer(bytearray(steering.vector), dtype=torch.float32)
    decoder = model.get_decoder()
    layers = decoder.h if hasattr(decoder, "h") else decoder.layers

    def add(_module, _given, output):
        hidden = output if isinstance(output, torch.Tensor) else output[0]
        hidden[:, len(prompt) - 1 :] += vector
        return output

    hook = layers[steering.layer].register_forward_hook(add)
    whole = torch.from_numpy(np.concatenate([prompt, sample.tokens]))
    logprobs = model(whole[None]).logits[0].log_softmax(-1)
    hook.remove()
    return logprobs[len(prompt) - 1 : -1].gather(1, whole[len(prompt) :, None])[:, 0].numpy()


def same(one, other):
    return np.array_equal(one.tokens, other.tokens) and np.array_equal(one.logprobs, other.logprobs)


@KERNELS
@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("family", FAMILIES)
async def test_recorded_logprobs_are_those_of_the_steered_distribution(family, layer, kernel):
    model, steering = build(family), steering_of(layer)
    engine = open_engine(model, kernel=kernel)
    prompts = [tokens_of(n, 9 + 20 * n) for n in range(3)]
    samples = await asyncio.gather(*(engine.sample(Prompt(prompt), params(steering)) for prompt in prompts))
    for prompt, sample in zip(prompts, samples, strict=True):
        exact = steered_logprobs(model, prompt, sample, steering)
        np.testing.assert_allclose(sample.logprobs, exact, atol=1e-4)
        none = steered_logprobs(model, prompt, sample, Steering(layer, bytes(4 * HIDDEN)))
        assert np.abs(exact - none).max() > 0.01
    await engine.close()


@KERNELS
@pytest.mark.parametrize("family", FAMILIES)
async def test_a_vector_of_zeros_changes_no_bit(family, kernel):
    model, prompt = build(family), tokens_of(3, 40)
    for layer in range(LAYERS):
        engine, other = open_engine(model, kernel=kernel), open_engine(model, kernel=kernel)
        plain = await engine.sample(Prompt(prompt), params(None))
        assert same(plain, await other.sample(Prompt(prompt), params(Steering(layer, bytes(4 * HIDDEN)))))
        await engine.close()
        await other.close()


@KERNELS
@pytest.mark.parametrize("layer", [0, 2])
async def test_steered_and_unsteered_samples_share_a_prompt_and_no_page_of_what_was_steered(layer, kernel):
    """Plays of several turns, in one engine and each in its own: what the cache holds of the others changes nothing."""
    model = build("llama")
    ways = [None, steering_of(layer), steering_of(layer, 1), steering_of(layer, size=2.0), None]

    async def play(engine, steering):
        told, prompt = [], tokens_of(5, 70)
        for turn in range(3):
            sample = await engine.sample(Prompt(prompt), params(steering, seed=turn))
            told.append((prompt, sample))
            prompt = np.concatenate([prompt, sample.tokens, tokens_of(turn, 9)])
        return told

    engine = open_engine(model, kernel=kernel, stops=())
    together = [await play(engine, way) for way in ways] + await asyncio.gather(*(play(engine, way) for way in ways))
    assert engine.stats().reused_tokens > 3 * 64 * len(ways)
    await engine.close()
    for way, played in zip(ways * 2, together, strict=True):
        for prompt, sample in played:
            exact = steered_logprobs(model, prompt, sample, way or Steering(0, bytes(4 * HIDDEN)))
            np.testing.assert_allclose(sample.logprobs, exact, atol=1e-4)
    if kernel:  # whose numbers do not depend on what runs beside
        alone = open_engine(model, stops=())
        again = [(await play(alone, way), await alone.forget())[0] for way in ways]
        await alone.close()
        for one, other in zip(together, again * 2, strict=True):
            assert all(same(a, b) for (_, a), (_, b) in zip(one, other, strict=True))


@KERNELS
async def test_adapters_are_steered_as_their_merged_models_are(kernel):
    model, steering, prompt = build("llama"), steering_of(1), tokens_of(2, 30)
    adapters = {f"a{n}": random_adapter(model, n, 4) for n in range(2)}
    engine = open_engine(model, kernel=kernel)
    for name, adapter in adapters.items():
        await engine.add_adapter(name, adapter)
    models = {"policy": model} | {name: with_merged(model, adapter) for name, adapter in adapters.items()}
    asked = [(name, way) for name in models for way in (steering, None)]
    samples = await asyncio.gather(*(engine.sample(Prompt(prompt), params(way, model=name)) for name, way in asked))
    for (name, way), sample in zip(asked, samples, strict=True):
        exact = steered_logprobs(models[name], prompt, sample, way or Steering(0, bytes(4 * HIDDEN)))
        np.testing.assert_allclose(sample.logprobs, exact, atol=1e-4)
    await engine.close()


@KERNELS
async def test_a_sample_under_way_goes_on_steered_under_new_weights(kernel):
    model, other, steering, prompt = build("llama"), build("llama", seed=1), steering_of(1), tokens_of(4, 40)
    engine = open_engine(model, kernel=kernel, stops=(), in_flight="recompute")
    weights = list(twin(other).named_parameters(remove_duplicate=False))
    begun = asyncio.Event()
    asked = engine.sample_telling(Prompt(prompt), params(steering, max_tokens=60), lambda _: begun.set())
    task = asyncio.create_task(asked)
    await begun.wait()
    await engine.publish(weights, 1)
    sample = await task
    assert sample.versions == (0, 1)
    exact = steered_logprobs(other, prompt, sample, steering)
    np.testing.assert_allclose(sample.logprobs[-5:], exact[-5:], atol=1e-4)
    await engine.close()


async def test_choices_are_drawn_from_the_steered_distribution():
    model, steering, prompt = build("llama"), steering_of(2, size=3.0), tokens_of(6, 20)
    engine = open_engine(model)
    choices = ((10, 11), (10, 12), (13,))
    given = replace(params(steering), choices=choices)
    for seed in range(4):
        sample = await engine.sample(Prompt(prompt), replace(given, seed=seed))
        assert tuple(sample.tokens) in choices
        for number, allowed in enumerate(sample.allowed or ()):
            assert allowed is not None
            every = [steered_logprobs(model, prompt, with_last(sample, number, one), steering)[-1] for one in allowed]
            own = steered_logprobs(model, prompt, with_last(sample, number, sample.tokens[number]), steering)[-1]
            assert abs(sample.logprobs[number] - (own - np.logaddexp.reduce(every))) < 1e-4
    await engine.close()


def with_last(sample, number, token):
    return replace(
        sample,
        tokens=np.array([*sample.tokens[:number], token]),
        logprobs=np.zeros(number + 1, dtype=np.float32),
        allowed=None,
    )


async def test_a_steering_of_another_model_is_refused():
    engine = open_engine(build("llama"))
    for wrong in (Steering(3, bytes(4 * HIDDEN)), Steering(-1, bytes(4 * HIDDEN)), Steering(0, bytes(4 * 47))):
        with pytest.raises(ModelError, match="the model has 48 after each of the layers 0 to 2: make the vector from"):
            await engine.sample(Prompt(tokens_of(0, 5)), params(wrong))
    await engine.close()
    compiled = open_engine(build("gpt2"), compiled=True, kernel=False)
    with pytest.raises(ModelError, match="set compile = false"):
        await compiled.sample(Prompt(tokens_of(0, 5)), params(steering_of(0)))
    await compiled.close()


async def test_what_steers_the_policy_is_not_added_to_other_models():
    policy, other = open_engine(build("llama")), open_engine(build("qwen3"))
    routed, prompt = RoutedSampler(policy, {"other": other}), Prompt(tokens_of(1, 20))
    plain = await other.sample(prompt, params(None))
    assert same(plain, await routed.sample(prompt, params(steering_of(1), model="other")))
    assert not same(await policy.sample(prompt, params(None)), await routed.sample(prompt, params(steering_of(1))))
    await routed.close()


def test_vllm_is_not_asked_for_what_it_cannot_do():
    vllm_mapping.check(params(None))
    with pytest.raises(ModelError, match="vLLM's engine adds nothing to hidden states"):
        vllm_mapping.check(params(steering_of(0)))
