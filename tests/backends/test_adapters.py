"""Adapters over one base are sampled in the same steps, each as if its base had it merged in, and alone."""

import asyncio

import numpy as np
import pytest
import torch
from adapted_models import random_adapter, with_merged
from engine_models import STOP, VOCABULARY, build, logits_of, logprobs_of, twin

from sojourn.backends.torch.models.adapters import LowRank, adapter_of
from sojourn.backends.torch.sampler.adapter_sampler import AdapterSampler
from sojourn.backends.torch.sampler.engine import Engine
from sojourn.errors import InfrastructureError, ModelError
from sojourn.models.spec import Lora
from sojourn.train.routed_sampler import RoutedSampler
from sojourn.types import Prompt, SamplingParams

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma3", "gpt2"]
KERNELS = pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "torch"])
TOLERANCE = 1e-4
RANKS = (4, 1, 3, 16, 40, 2, 7, 8)


def open_engine(model, **changes):
    return Engine(twin(model), **{"stops": (STOP,), "max_context": 200, "prefill_chunk": 16, **changes})


def tokens_of(seed, count):
    return np.random.default_rng(seed).integers(4, VOCABULARY, count)


def params(name, seed, max_tokens=8):
    return SamplingParams(max_tokens, seed=seed, model=name)


async def play(engine, name, prompt, seed, turns=2):
    """An episode of the model of that name: every turn goes on from the last sample."""
    told = []
    for turn in range(turns):
        sample = await engine.sample(Prompt(prompt), params(name, seed * 1000 + turn))
        told.append((prompt, sample))
        prompt = np.concatenate([prompt, sample.tokens, tokens_of(seed * 77 + turn, 5)])
    return told


async def with_adapters(engine, adapters):
    for name, adapter in adapters.items():
        await engine.add_adapter(name, adapter)
    return engine


def adapters_of(model):
    return {f"a{n}": random_adapter(model, n, rank) for n, rank in enumerate(RANKS)}


def assert_exact(model, told):
    for prompt, sample in told:
        np.testing.assert_allclose(sample.logprobs, logprobs_of(model, prompt, sample.tokens), atol=TOLERANCE)


@KERNELS
@pytest.mark.parametrize("family", FAMILIES)
async def test_each_adapter_is_sampled_as_if_it_were_merged(family, kernel):
    model = build(family)
    adapters = adapters_of(model)
    engine = await with_adapters(open_engine(model, kernel=kernel), adapters)
    plays = [play(engine, name, tokens_of(n % 3, 9 + 7 * n), n) for n, name in enumerate(adapters)]
    first, *told = await asyncio.gather(play(engine, "policy", tokens_of(1, 16), 50), *plays)
    assert_exact(model, first)
    for adapter, turns in zip(adapters.values(), told, strict=True):
        assert_exact(with_merged(model, adapter), turns)
    await engine.close()


@KERNELS
@pytest.mark.parametrize("family", FAMILIES)
async def test_prompts_are_scored_by_the_adapter_that_is_asked(family, kernel):
    model = build(family)
    adapter, prompt = random_adapter(model, 1), tokens_of(5, 60)
    engine = await with_adapters(open_engine(model, kernel=kernel), {"a": adapter})
    scores = await asyncio.gather(engine.score(Prompt(prompt), "a"), engine.score(Prompt(prompt)))
    for one, score in zip((with_merged(model, adapter), model), scores, strict=True):
        expected = logits_of(one, prompt).log_softmax(-1).numpy()[np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose(score, expected, atol=TOLERANCE)
    await engine.close()


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
async def test_a_token_has_the_same_bits_whichever_adapters_run_beside_it(family, half):
    model = build(family).to(torch.bfloat16 if half else torch.float32)
    adapters, prompts = adapters_of(model), [tokens_of(n, 5 + 9 * n) for n in range(3)]

    async def asked(names, chunk, threads, beside=()):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        engine = await with_adapters(open_engine(model, stops=(), prefill_chunk=chunk), adapters)
        assert type(engine._runner._decoder).__name__ == "CDecoder"
        others = [play(engine, name, tokens_of(60 + n, 3 * n + 2), n) for n, name in enumerate(beside)]
        own = [engine.sample(Prompt(prompt), params(name, 3)) for name in names for prompt in prompts]
        found = (await asyncio.gather(*others, *own))[len(others) :]
        await engine.close()
        torch.set_num_threads(before)
        return [(*sample.tokens, *sample.logprobs) for sample in found]

    every = ["policy", *adapters]
    together = await asked(every, 16, 2, every * 3)
    for chunk, threads in ((500, 1), (3, 2)):
        alone = [columns for name in every for columns in await asked([name], chunk, threads)]
        assert together == alone
    engine = open_engine(model, stops=())  # without any adapter
    plain = [await engine.sample(Prompt(prompt), params("policy", 3)) for prompt in prompts]
    assert together[: len(prompts)] == [(*sample.tokens, *sample.logprobs) for sample in plain]
    await engine.close()


@KERNELS
@pytest.mark.parametrize("rank", [16, 3])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
async def test_half_precision_stays_as_near_the_whole_as_that_of_the_merged_model(family, rank, kernel):
    model = build(family)
    adapter = random_adapter(model, 1, rank)
    merged = with_merged(model, adapter)
    half = twin(model).to(torch.bfloat16)
    engine = await with_adapters(open_engine(half, kernel=kernel), {"a": adapter})
    told = [turn for n in range(4) for turn in await play(engine, "a", tokens_of(n, 20 + n), n, 3)]
    ours, theirs = [], []
    for prompt, sample in told:
        exact = logprobs_of(merged, prompt, sample.tokens)
        ours.append(sample.logprobs - exact)
        theirs.append(logprobs_of(twin(merged).to(torch.bfloat16), prompt, sample.tokens) - exact)
    assert np.abs(np.concatenate(ours)).mean() < 1.5 * np.abs(np.concatenate(theirs)).mean()
    await engine.close()


async def test_an_adapter_of_some_layers_leaves_the_others_as_they_are():
    model = build("llama")
    for ends in (("v_proj",), ("k_proj", "down_proj"), ("q_proj", "up_proj"), ("gate_proj",), ("o_proj",)):
        adapter = {name: pair for name, pair in random_adapter(model, 1).items() if name.endswith(ends)}
        engine = await with_adapters(open_engine(model), {"a": adapter})
        assert_exact(with_merged(model, adapter), await play(engine, "a", tokens_of(1, 20), 1))
        await engine.close()


@KERNELS
async def test_models_share_no_cached_contexts(kernel):
    model, prompt = build("llama"), tokens_of(1, 80)
    adapters = {name: random_adapter(model, n) for n, name in enumerate("ab")}
    engine = await with_adapters(open_engine(model, kernel=kernel), adapters)

    async def reused(name):
        before = engine.stats().reused_tokens
        await engine.sample(Prompt(prompt), params(name, 1))
        return engine.stats().reused_tokens - before

    assert [await reused(name) for name in ("policy", "a", "b", "a", "policy", "b")] == [0, 0, 0, 79, 79, 79]
    await engine.drop_adapter("a")
    await engine.add_adapter("a", random_adapter(model, 7))
    assert [await reused(name) for name in ("a", "b", "policy")] == [0, 79, 79]
    await engine.publish(model.named_parameters(), 1)
    assert [await reused(name) for name in ("a", "b", "policy", "a")] == [0, 0, 0, 79]
    await engine.forget()
    assert [await reused(name) for name in ("a", "b")] == [0, 0]
    await engine.close()


@KERNELS
async def test_the_policy_can_be_sampled_by_an_adapter_and_others_keep_their_contexts(kernel):
    model, prompt = build("llama"), tokens_of(1, 80)
    adapters = [random_adapter(model, n) for n in range(3)]
    engine = await with_adapters(open_engine(model, kernel=kernel), {"a": adapters[0]})
    await engine.sample(Prompt(prompt), params("a", 1))
    for version, adapter in enumerate(adapters[1:], 1):
        trained = {name: LowRank(*(part.clone() for part in pair)) for name, pair in adapter.items()}
        await engine.publish_adapter(trained, version)
        for part in (part for pair in trained.values() for part in pair):
            part.zero_()  # as the trainer goes on to change them
        told = await play(engine, "policy", prompt, version)
        assert_exact(with_merged(model, adapter), told)
        assert {sample.versions for _, sample in told} == {(version, version)}
    before = engine.stats().reused_tokens
    assert_exact(with_merged(model, adapters[0]), await play(engine, "a", prompt, 1, 1))
    assert engine.stats().reused_tokens - before == 79
    await engine.close()


async def test_a_dropped_adapter_frees_its_pages_and_is_unknown():
    model = build("llama")
    engine = await with_adapters(open_engine(model), {"a": random_adapter(model, 1)})
    await play(engine, "policy", tokens_of(2, 40), 1)
    held = engine.stats().held_pages
    await play(engine, "a", tokens_of(1, 40), 1)
    assert engine.stats().held_pages > held
    await engine.drop_adapter("a")
    assert engine.stats().held_pages == held
    for asked in (engine.sample(Prompt(tokens_of(1, 4)), params("a", 1)), engine.score(Prompt(tokens_of(1, 4)), "a")):
        with pytest.raises(ModelError, match="model 'a' is asked, but this engine samples policy: add_adapter"):
            await asked
    with pytest.raises(ModelError, match="'a' is dropped, but there is none"):
        await engine.drop_adapter("a")
    with pytest.raises(ModelError, match="none"):
        await engine.drop_adapter("policy")
    await engine.close()


async def sampling(engine, name, tokens):
    """Returns a sample of 100 tokens, of which some are drawn."""
    before = engine.stats().sampled_tokens
    asked = asyncio.create_task(engine.sample(Prompt(tokens), params(name, 1, 100)))
    while engine.stats().sampled_tokens < before + 2:  # noqa: ASYNC110 (the engine tells nobody how far it is)
        await asyncio.sleep(0)
    return asked


async def test_an_adapter_that_is_being_sampled_is_dropped_once_that_is_done():
    model, prompt = build("llama"), tokens_of(1, 20)
    adapters = [random_adapter(model, n) for n in range(2)]
    engine = await with_adapters(open_engine(model, stops=()), {"a": adapters[0]})
    asked = await sampling(engine, "a", prompt)
    dropped = asyncio.create_task(engine.drop_adapter("a"))
    await asyncio.sleep(0)
    with pytest.raises(ModelError, match="has a model of that name"):
        await engine.add_adapter("a", adapters[1])
    assert_exact(with_merged(model, adapters[0]), [(prompt, await asked)])
    await dropped
    await engine.add_adapter("a", adapters[1])
    assert_exact(with_merged(model, adapters[1]), await play(engine, "a", prompt, 1))
    cancelled = await sampling(engine, "a", prompt)
    dropped = asyncio.create_task(engine.drop_adapter("a"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await dropped
    assert_exact(model, await play(engine, "policy", prompt, 1))
    assert cancelled.cancelled()
    await with_adapters(engine, {"a": adapters[0]})
    asked = await sampling(engine, "a", prompt)
    dropped = asyncio.create_task(engine.drop_adapter("a"))
    await asyncio.sleep(0)
    await engine.close()
    await dropped
    with pytest.raises(InfrastructureError, match="closed"):
        await asked


@KERNELS
async def test_an_adapter_of_another_model_or_of_a_name_that_is_taken_is_refused(kernel):
    model = build("llama")
    engine = await with_adapters(open_engine(model, kernel=kernel), {"a": random_adapter(model, 1)})
    for name in ("a", "policy"):
        with pytest.raises(ModelError, match=f"'{name}' is added, but the engine has a model of that name"):
            await engine.add_adapter(name, random_adapter(model, 2))
    for layer, found in (("model.layers.0.mlp.up_proj", "one from 48 to 64"), ("lm_head", "no such layer")):
        with pytest.raises(ModelError, match=f"'{layer}' from 5 to 7 numbers, but the sampler's model has {found}"):
            await engine.add_adapter("b", {layer: LowRank(torch.zeros(2, 5), torch.zeros(7, 2))})
    with pytest.raises(ModelError, match="'b' is asked"):
        await engine.sample(Prompt(tokens_of(1, 4)), params("b", 1))
    await engine.close()
    with pytest.raises(InfrastructureError, match="closed"):
        await engine.add_adapter("c", random_adapter(model, 1))


async def test_a_sampler_of_one_adapter_is_closed_after_its_engine():
    model, prompt = build("llama"), Prompt(tokens_of(1, 20))
    engine = await with_adapters(open_engine(model, stops=()), {"a": random_adapter(model, 1)})
    router = RoutedSampler(engine, {"a": AdapterSampler(engine, "a")})
    sampled = await router.sample(prompt, params("a", 1))
    np.testing.assert_array_equal(sampled.tokens, (await engine.sample(prompt, params("a", 1))).tokens)
    np.testing.assert_array_equal(await router.others["a"].score(prompt), await engine.score(prompt, "a"))
    asked = asyncio.create_task(router.sample(prompt, params("a", 1, 100)))
    before = engine.stats().sampled_tokens
    while engine.stats().sampled_tokens < before + 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await router.close()
    with pytest.raises(InfrastructureError, match="closed"):
        await asked


def test_weights_that_are_no_adapter_are_refused():
    for names, odd in (([], "none of them"), (["model.norm.weight"], "model.norm.weight")):
        with pytest.raises(ModelError, match=f"adapter was expected, .* but there are {len(names)} \\('{odd}'\\)"):
            adapter_of([(name, torch.zeros(1)) for name in names], Lora())


async def test_compiled_layers_take_no_adapters():
    model = build("gemma3")
    engine = open_engine(model)
    engine._runner._compiled = True  # compiling takes long
    with pytest.raises(ModelError, match="set compile = false"):
        await engine.add_adapter("a", random_adapter(model, 1))
    await engine.close()
