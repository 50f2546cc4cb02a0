"""The engine says what the model says: continued, forked, shared and mixed contexts, on several families of models."""

import asyncio
import shutil
import threading

import numpy as np
import pytest
import torch
from engine_models import SIZES, STOP, VOCABULARY, build, logits_of, logprobs_of, twin
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from sojourn.backends.torch.backend import Torch
from sojourn.backends.torch.kernels import compiler
from sojourn.backends.torch.kernels import kernel as kernels
from sojourn.backends.torch.kernels.cache import PAGE, Shape
from sojourn.backends.torch.sampler import decoders
from sojourn.backends.torch.sampler.engine import Engine
from sojourn.errors import BudgetError, ConfigError, InfrastructureError, ModelError
from sojourn.models.spec import Model
from sojourn.timeline import Timeline
from sojourn.types import Prompt, Sample, SamplingParams, Stop, Versions

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma3"]
KERNELS = pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "torch"])
TOLERANCE = 1e-4
TINY = Model(name="tiny")


def open_engine(model, **changes):
    return Engine(twin(model), **{"stops": (STOP,), "max_context": 200, "prefill_chunk": 16, **changes})


def tokens_of(seed, count):
    return np.random.default_rng(seed).integers(4, VOCABULARY, count)


async def play(engine, prompt, turns, seed, max_tokens=8):
    """An episode: every turn goes on from the last sample. Returns the prompts and the samples."""
    told = []
    for turn in range(turns):
        sample = await engine.sample(Prompt(prompt), SamplingParams(max_tokens, seed=seed * 1000 + turn))
        told.append((prompt, sample))
        prompt = np.concatenate([prompt, sample.tokens, tokens_of(seed * 77 + turn, 5)])
    return told


def flat(episodes):
    return [turn for episode in episodes for turn in episode]


async def until(engine, reached):
    while not reached(engine.stats()):  # noqa: ASYNC110 (the engine tells nobody how far it is)
        await asyncio.sleep(0)


def assert_exact(model, told):
    for prompt, sample in told:
        np.testing.assert_allclose(sample.logprobs, logprobs_of(model, prompt, sample.tokens), atol=TOLERANCE)


@KERNELS
@pytest.mark.parametrize("family", FAMILIES)
async def test_turns_forks_and_groups_in_mixed_batches_agree_with_a_plain_forward(family, kernel):
    model = build(family)
    engine = open_engine(model, kernel=kernel)
    assert (engine._runner._kernel is None) == (not kernel)
    shared = tokens_of(1, 40)
    group = [play(engine, shared, 3, seed) for seed in range(3)]
    others = [play(engine, tokens_of(50 + n, 3 + 17 * n), 2, 10 + n) for n in range(4)]
    told = [turn for episode in await asyncio.gather(*group, *others) for turn in episode]
    assert len(told) == 3 * 3 + 4 * 2
    assert_exact(model, told)
    for parent, sample in told[:3]:  # forks: other continuations of contexts that have gone on since
        again = np.concatenate([parent, sample.tokens, tokens_of(99, 3)])
        assert_exact(model, await play(engine, again, 1, 31))
    await engine.close()


@KERNELS
@pytest.mark.parametrize("family", FAMILIES)
async def test_scores_agree_with_a_plain_forward(family, kernel):
    model = build(family)
    engine = open_engine(model, kernel=kernel)
    prompts = [tokens_of(5, 60), tokens_of(6, 2), tokens_of(7, 1)]
    beside = play(engine, prompts[0][:30], 2, 4)
    *scores, told = await asyncio.gather(*[engine.score(Prompt(prompt)) for prompt in prompts], beside)
    for prompt, score in zip(prompts, scores, strict=True):
        expected = logits_of(model, prompt).log_softmax(-1).numpy()[np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose(score, expected, atol=TOLERANCE)
        assert score.dtype == np.float32
    assert_exact(model, told)
    await engine.close()


FORMS = [(family, True, "CDecoder") for family in ("llama", "mistral", "qwen2", "qwen3")]
FORMS += [
    ("gemma3", True, "TransformersDecoder"),
    ("qwen2", False, "TransformersDecoder"),
    ("llama", False, "FusedLlama"),
]


@pytest.mark.parametrize(("family", "kernel", "form"), FORMS)
async def test_the_fused_decoder_gives_the_logits_of_transformers(family, kernel, form, monkeypatch):
    model = build(family)
    fast = open_engine(model, kernel=kernel)
    monkeypatch.setattr(decoders, "build", lambda model, *_, **__: decoders.TransformersDecoder(model))
    plain = open_engine(model, kernel=kernel)
    assert [type(engine._runner._decoder).__name__ for engine in (fast, plain)] == [form, "TransformersDecoder"]
    told = await asyncio.gather(play(fast, tokens_of(1, 30), 3, 1), play(fast, tokens_of(2, 50), 3, 2))
    same = await asyncio.gather(play(plain, tokens_of(1, 30), 3, 1), play(plain, tokens_of(2, 50), 3, 2))
    for (_, one), (_, other) in zip(flat(told), flat(same), strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    await fast.close()
    await plain.close()


ODD = [  # hidden, inner, vocabulary, heads, kv_heads: sizes around the kernel's panels and blocks
    (48, 64, 97, 4, 2),
    (20, 7, 33, 5, 1),
    (32, 400, 16, 2, 2),
    (392, 32, 64, 4, 4),
]


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("sizes", ODD, ids=str)
async def test_the_compiled_decoder_gives_each_token_the_same_bits_in_every_batch_chunk_and_cache(sizes, half):
    if half and sizes[1] % 2:
        pytest.skip("in bf16, inputs are multiplied in pairs")
    names = ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_key_value_heads")
    torch.manual_seed(0)
    config = LlamaConfig(**(SIZES | dict(zip(names, sizes, strict=True)) | {"initializer_range": sizes[0] ** -0.5}))
    model = LlamaForCausalLM(config).eval()
    context = np.random.default_rng(1).integers(0, sizes[2], 250)
    others = [np.random.default_rng(9 + n).integers(0, sizes[2], 7 * n + 3) for n in range(9)]
    found, before = [], torch.get_num_threads()
    ways = [(512, 1, False), (512, 2, True), (1, 1, True), (7, 2, True), (100, 2, False)]
    for chunk, threads, crowd in ways:
        torch.set_num_threads(threads)
        told = twin(model).to(torch.bfloat16) if half else model
        engine = open_engine(told, stops=(), max_context=256, prefill_chunk=chunk)
        assert type(engine._runner._decoder).__name__ == "CDecoder"
        beside = [engine.sample(Prompt(other), SamplingParams(5)) for other in others if crowd]
        first = await asyncio.gather(*beside, engine.sample(Prompt(context[:120]), SamplingParams(3, seed=1)))
        samples = [await engine.sample(Prompt(context[:n]), SamplingParams(3, seed=n)) for n in (60, 121, 250)]
        columns = [(*one.tokens, *one.logprobs) for one in (first[-1], *samples)]
        found.append((columns, (await engine.score(Prompt(context))).tolist()))
        await engine.close()
    torch.set_num_threads(before)
    assert all(one == found[0] for one in found)
    gaps = np.abs(found[0][1] - logprobs_of(model, context[:1], context[1:]))
    assert gaps.max() < (0.2 if half else TOLERANCE)
    assert gaps.mean() < 0.02


async def test_positions_that_scale_beyond_the_models_length_stay_as_they_are_within_it():
    torch.manual_seed(0)
    scaled = {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}}
    model = LlamaForCausalLM(LlamaConfig(**SIZES, **scaled)).eval()
    engine = open_engine(model, max_context=256)
    assert type(engine._runner._decoder).__name__ == "CDecoder"
    assert_exact(model, await play(engine, tokens_of(1, 210), 3, 1))
    await engine.close()


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_sample_is_the_same_alone_and_beside_others(family):
    model = build(family)
    engine = open_engine(model)
    alone = await play(engine, tokens_of(3, 20), 2, 8)
    await engine.close()
    engine = open_engine(model)
    crowd = [play(engine, tokens_of(60 + n, 5 * n + 2), 2, 20 + n) for n in range(6)]
    *_, beside = await asyncio.gather(*crowd, play(engine, tokens_of(3, 20), 2, 8))
    for (_, one), (_, other) in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
    await engine.close()


async def test_the_same_requests_give_the_same_results_to_the_bit():
    model = build("llama")

    async def run():
        engine = open_engine(model, max_batch=4)
        told = await asyncio.gather(*[play(engine, tokens_of(n // 3, 30 + n), 3, n) for n in range(9)])
        stats = engine.stats()
        await engine.close()
        return flat(told), (stats.steps, stats.rows, stats.prefill_tokens, stats.reused_tokens)

    first, second = await run(), await run()
    assert first[1] == second[1]
    for (_, one), (_, other) in zip(first[0], second[0], strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)


async def test_whoever_was_answered_can_ask_again_before_the_next_step():
    engine = open_engine(build("llama"), stops=())

    async def episode(seed, hops):
        prompt = tokens_of(seed, 1)
        for turn in range(5):
            sample = await engine.sample(Prompt(prompt), SamplingParams(1, seed=turn))
            for _ in range(hops):  # queues, gathers and semaphores between a sample and the next
                await asyncio.sleep(0)
            prompt = np.concatenate([prompt, sample.tokens])

    await asyncio.gather(episode(1, 0), episode(2, 3), episode(3, 8))
    assert (engine.stats().steps, engine.stats().rows) == (5, 15)
    await engine.close()


async def test_seeds_and_prompts_decide_the_sample():
    engine = open_engine(build("llama"))
    prompt = tokens_of(3, 10)
    samples = await asyncio.gather(
        *[engine.sample(Prompt(prompt), SamplingParams(12, seed=seed)) for seed in (0, 0, 1, 2)]
    )
    assert np.array_equal(samples[0].tokens, samples[1].tokens)
    assert len({tuple(sample.tokens) for sample in samples}) == 3
    await engine.close()


async def test_a_groups_prompt_is_computed_once_and_a_turn_only_its_new_tokens():
    engine = open_engine(build("llama"), stops=())
    shared, size = tokens_of(1, 96), 6
    told = await asyncio.gather(*[engine.sample(Prompt(shared), SamplingParams(4, seed=seed)) for seed in range(size)])
    stats = engine.stats()
    assert stats.prefill_tokens == 96 + (size - 1)  # for the others, the last token only
    assert stats.reused_tokens == (size - 1) * 95
    assert stats.sampled_tokens == 4 * size
    longer = [np.concatenate([shared, sample.tokens, tokens_of(n, 7)]) for n, sample in enumerate(told)]
    await asyncio.gather(*[engine.sample(Prompt(prompt), SamplingParams(4)) for prompt in longer])
    # the last sampled token of a turn had no need to be computed then, so a turn costs its 7 tokens and that one
    assert engine.stats().prefill_tokens - stats.prefill_tokens == size * (7 + 1)
    await engine.close()


async def test_figures_are_of_what_was_done_since_they_were_last_asked_for():
    engine = open_engine(build("llama"), stops=(), max_batch=2)
    shared = tokens_of(1, 64)
    await asyncio.gather(*[engine.sample(Prompt(shared), SamplingParams(4, seed=seed)) for seed in range(4)])
    first = engine.metrics()
    assert first["sampler_prefill_tokens"] == 64 + 3
    assert first["sampler_reuse"] == 3 * 63 / (4 * 64)
    assert 1 < first["sampler_batch"] <= 2
    assert 0 < first["sampler_queued_s"] < 60
    assert 0 < first["sampler_held"] < 1
    await engine.sample(Prompt(shared), SamplingParams(5))
    second = engine.metrics()
    assert (second["sampler_prefill_tokens"], second["sampler_reuse"], second["sampler_batch"]) == (1, 63 / 64, 1)
    assert engine.metrics()["sampler_prefill_tokens"] == 0
    await engine.close()


async def test_what_is_done_between_two_passes_counts_as_sampling():
    clock = [0.0]
    timeline = Timeline(now=lambda: clock[0])
    engine = open_engine(build("llama"), timeline=timeline)

    def takes(seconds, work):
        def timed(*arguments):
            clock[0] += seconds
            return work(*arguments)

        return timed

    engine._admit, engine._deliver = takes(2, engine._admit), takes(3, engine._deliver)
    await engine.sample(Prompt(tokens_of(1, 8)), SamplingParams(4))
    spent = timeline.take()
    assert spent["sample"] == clock[0] >= 4 * 5
    assert spent["other"] == 0
    await engine.close()


async def test_a_long_prompt_does_not_keep_the_others_waiting():
    engine = open_engine(build("llama"), stops=(), prefill_chunk=8)
    ended = []

    async def one(name, prompt, count):
        await engine.sample(Prompt(prompt), SamplingParams(count))
        ended.append(name)

    await asyncio.gather(one("long prompt", tokens_of(1, 160), 1), one("short", tokens_of(2, 4), 10))
    assert ended == ["short", "long prompt"]
    await engine.close()


@pytest.mark.parametrize("family", FAMILIES)
async def test_publish_changes_samples_and_nothing_else_does(family):
    first, second = build(family), build(family, seed=1)
    engine = open_engine(first)
    prompt = tokens_of(1, 30)
    params = SamplingParams(8, seed=5)
    before = await engine.sample(Prompt(prompt), params)
    again = await engine.sample(Prompt(prompt), params)
    np.testing.assert_array_equal(before.tokens, again.tokens)
    await engine.publish(second.named_parameters(), 1)
    assert engine.version == 1
    after = await engine.sample(Prompt(prompt), params)
    assert_exact(first, [(prompt, before)])
    assert_exact(second, [(prompt, after)])  # through the tied embeddings too, and no cached keys of the old weights
    assert (before.versions, after.versions) == (Versions(0, 0), Versions(1, 1))
    await engine.publish(first.named_parameters(), 1)  # a run that is resumed may give its number again
    assert_exact(first, [(prompt, await engine.sample(Prompt(prompt), params))])
    await engine.publish(second.named_parameters(), 2)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.add_(1.0)
    unmoved = await engine.sample(Prompt(prompt), params)
    np.testing.assert_array_equal(after.tokens, unmoved.tokens)
    await engine.close()


async def test_a_sample_under_way_says_that_two_weights_made_it_and_leaves_no_keys_behind():
    first, second = build("qwen2"), build("qwen2", seed=1)
    engine = open_engine(first, stops=())
    prompt = tokens_of(1, 20)
    under_way = asyncio.create_task(engine.sample(Prompt(prompt), SamplingParams(60, seed=1)))
    await until(engine, lambda stats: stats.sampled_tokens >= 5)
    await engine.publish(second.named_parameters(), 1)
    sample = await under_way
    assert sample.versions == Versions(0, 1)
    on = np.concatenate([prompt, sample.tokens, tokens_of(2, 4)])
    assert_exact(second, await play(engine, on, 1, 3))
    await engine.close()


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
async def test_recomputed_samples_are_exact_under_both_weights(family):
    """With `keep` the later tokens would come from keys and values of two weights."""
    first, second = build(family), build(family, seed=1)
    kept, engine = open_engine(first, stops=()), open_engine(first, stops=(), in_flight="recompute")
    prompts = [tokens_of(seed, 20 + 7 * seed) for seed in range(3)]
    found = []
    for one in (kept, engine):
        running = [
            asyncio.create_task(one.sample(Prompt(p), SamplingParams(40, seed=n))) for n, p in enumerate(prompts)
        ]
        await until(one, lambda stats: stats.sampled_tokens >= 15)
        await one.publish(second.named_parameters(), 1)
        found.append(await asyncio.gather(*running))
        await one.close()
    for n, prompt in enumerate(prompts):
        old, new = (sample.tokens for sample in (found[0][n], found[1][n]))
        before = next(at for at, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)  # both drew these alike
        assert before >= 3
        sample = found[1][n]
        assert (sample.versions, len(sample.tokens)) == (Versions(0, 1), 40)
        by = [logprobs_of(model, prompt, sample.tokens) for model in (first, second)]
        exact = [np.abs(sample.logprobs - one) < TOLERANCE for one in by]
        change = int(np.argmin(exact[0]))  # the first token that is not as likely as the old weights say
        assert 3 <= change <= before
        assert exact[1][change:].all()
        assert not (np.abs(found[0][n].logprobs[before + 1 :] - by[1][before + 1 :]) < TOLERANCE).all()


async def test_drained_samples_end_under_the_weights_that_they_began_with():
    first, second = build("llama"), build("llama", seed=1)
    engine = open_engine(first, stops=(), in_flight="drain")
    prompt = tokens_of(1, 20)
    under_way = asyncio.create_task(engine.sample(Prompt(prompt), SamplingParams(40, seed=1)))
    await until(engine, lambda stats: stats.sampled_tokens >= 5)
    publishing = asyncio.create_task(engine.publish(second.named_parameters(), 1))
    await asyncio.sleep(0)
    later = asyncio.create_task(engine.sample(Prompt(prompt), SamplingParams(5, seed=2)))
    sample = await under_way
    assert not later.done()
    await publishing
    assert (sample.versions, (await later).versions) == (Versions(0, 0), Versions(1, 1))
    assert_exact(first, [(prompt, sample)])
    assert_exact(second, [(prompt, await later)])
    await engine.close()


async def test_a_prompt_that_is_being_read_starts_again_with_new_weights():
    first, second = build("llama"), build("llama", seed=1)
    engine = open_engine(first, prefill_chunk=4)
    prompt = tokens_of(1, 120)
    reading = asyncio.create_task(engine.sample(Prompt(prompt), SamplingParams(4, seed=1)))
    scoring = asyncio.create_task(engine.score(Prompt(prompt)))
    await until(engine, lambda stats: stats.prefill_tokens >= 8)
    await engine.publish(second.named_parameters(), 1)
    sample, score = await asyncio.gather(reading, scoring)
    assert sample.versions == Versions(1, 1)
    assert_exact(second, [(prompt, sample)])
    np.testing.assert_allclose(score, logprobs_of(second, prompt[:1], prompt[1:]), atol=TOLERANCE)
    await engine.close()


async def test_weights_of_another_model_are_refused():
    engine = open_engine(build("llama"))
    with pytest.raises(ModelError, match=r"no\.such.*no such parameter"):
        await engine.publish([("no.such", torch.zeros(2))], 1)
    with pytest.raises(ModelError, match="copies of one model"):
        await engine.publish([("model.norm.weight", torch.zeros(2))], 1)
    assert engine.version == 0
    await engine.close()


async def test_choices_are_sampled_with_logprobs_over_what_is_allowed():
    model = build("llama")
    engine = open_engine(model)
    prompt = tokens_of(1, 12)
    choices = ((10, 11, 12, STOP), (10, 20, STOP), (30, STOP), (10, 11, 13, STOP))
    seen = set()
    for seed in range(24):
        params = SamplingParams(6, temperature=0.7, choices=choices, seed=seed)
        sample = await engine.sample(Prompt(prompt), params)
        seen.add(tuple(sample.tokens.tolist()))
        assert sample.stop is Stop.CHOICE
        assert sample.allowed is not None
        table = logits_of(model, np.concatenate([prompt, sample.tokens])) / 0.7
        for place, (token, logprob, allowed) in enumerate(
            zip(sample.tokens, sample.logprobs, sample.allowed, strict=True)
        ):
            assert token in allowed
            possible = table[len(prompt) - 1 + place, torch.from_numpy(allowed)].log_softmax(0).numpy()
            np.testing.assert_allclose(logprob, possible[list(allowed).index(token)], atol=TOLERANCE)
    assert len(seen) > 1
    assert seen <= set(choices)
    await engine.close()


async def test_a_choice_that_begins_another_is_ended_by_a_stop():
    engine = open_engine(build("llama"))
    params = [SamplingParams(5, choices=((10, 11), (10, 11, 12)), seed=seed, temperature=5.0) for seed in range(12)]
    samples = await asyncio.gather(*[engine.sample(Prompt(tokens_of(1, 9)), p) for p in params])
    assert {tuple(s.tokens.tolist()) for s in samples} == {(10, 11, STOP), (10, 11, 12)}
    assert all(s.allowed is not None and s.allowed[2].tolist() == [STOP, 12] for s in samples)
    only = await engine.sample(Prompt(tokens_of(1, 9)), SamplingParams(5, choices=((7, 8),)))
    assert (only.tokens.tolist(), only.logprobs.tolist(), only.stop) == ([7, 8], [0.0, 0.0], Stop.CHOICE)
    cut = await engine.sample(Prompt(tokens_of(1, 9)), SamplingParams(1, choices=((7, 8),)))
    assert (cut.tokens.tolist(), cut.stop) == ([7], Stop.LENGTH)
    await engine.close()
    engine = open_engine(build("llama"), stops=())
    with pytest.raises(ModelError, match="beginning of another"):
        await engine.sample(Prompt(tokens_of(1, 9)), params[0])
    await engine.close()


async def test_stops_end_a_sample_and_are_part_of_it():
    model = build("llama")
    prompt = tokens_of(1, 9)
    engine = open_engine(model, stops=())
    free = await engine.sample(Prompt(prompt), SamplingParams(20, seed=2))
    await engine.close()
    assert (free.stop, len(free.tokens)) == (Stop.LENGTH, 20)
    stop = int(free.tokens[6])
    first = free.tokens.tolist().index(stop)
    engine = open_engine(model, stops=(stop,))
    sample = await engine.sample(Prompt(prompt), SamplingParams(20, seed=2))
    assert sample.stop is Stop.END
    np.testing.assert_array_equal(sample.tokens, free.tokens[: first + 1])
    await engine.close()


async def test_strings_and_tokens_of_a_request_end_its_sample():
    model = build("llama")
    engine = open_engine(model, stops=(), decode=lambda tokens: "".join(f"<{token}>" for token in tokens))
    prompt = Prompt(tokens_of(2, 12))
    free = await engine.sample(prompt, SamplingParams(20, seed=5))
    third, fourth = (int(token) for token in free.tokens[2:4])
    by_token = await engine.sample(prompt, SamplingParams(20, seed=5, stop_tokens=(third,)))
    by_string = await engine.sample(prompt, SamplingParams(20, seed=5, stop_strings=("never", f"{third}><{fourth}")))
    for sample, length in ((by_token, 3), (by_string, 4)):
        assert sample.stop is Stop.END
        np.testing.assert_array_equal(sample.tokens, free.tokens[:length])
        assert_exact(model, [(prompt.tokens, sample)])
    assert free.stop is Stop.LENGTH
    await engine.close()
    with pytest.raises(ModelError, match="no `decode`"):
        await open_engine(model).sample(prompt, SamplingParams(4, stop_strings=("x",)))


async def test_greedy_takes_the_likeliest_and_reports_temperature_one():
    model = build("qwen2")
    engine = open_engine(model)
    prompt = tokens_of(4, 15)
    sample = await engine.sample(Prompt(prompt), SamplingParams(6, temperature=0.0, seed=1))
    table = logits_of(model, np.concatenate([prompt, sample.tokens]))
    np.testing.assert_array_equal(sample.tokens, table[len(prompt) - 1 : -1].argmax(-1).numpy())
    assert_exact(model, [(prompt, sample)])
    assert sample.temperature == 1.0
    await engine.close()


async def test_a_request_beyond_the_context_is_refused():
    engine = open_engine(build("llama"), max_context=32)
    with pytest.raises(BudgetError, match="prompt of 30 tokens and 3 to sample exceed the 32"):
        await engine.sample(Prompt(tokens_of(1, 30)), SamplingParams(3))
    with pytest.raises(BudgetError, match="33"):
        await engine.score(Prompt(tokens_of(1, 33)))
    assert len((await engine.sample(Prompt(tokens_of(1, 30)), SamplingParams(2))).tokens) <= 2
    assert len(await engine.score(Prompt(tokens_of(1, 32)))) == 31
    await engine.close()


async def test_prompts_that_the_model_cannot_read_are_refused():
    engine = open_engine(build("llama"))
    for prompt, reason in [
        (Prompt(np.zeros(0, dtype=np.int64)), "empty"),
        (Prompt(np.array([VOCABULARY])), "token ids"),
        (Prompt(np.array([1]), images=("digest",)), "text only"),
    ]:
        with pytest.raises(ModelError, match=reason):
            await engine.sample(prompt, SamplingParams(2))
    await engine.close()


async def test_contexts_wait_for_memory_and_are_evicted_without_harm():
    model = build("llama")
    bytes_per_context = 7 * PAGE * 3 * 2 * 2 * 12 * 4  # 200 tokens, in whole pages
    engine = open_engine(model, memory_bytes=2 * bytes_per_context)
    told = await asyncio.gather(*[play(engine, tokens_of(n % 4, 10 + 20 * n), 3, n) for n in range(6)])
    assert_exact(model, flat(told))
    stats = engine.stats()
    assert stats.mean_batch < 6  # all at once would not have fitted
    assert stats.evicted_pages > 0
    assert stats.held_pages <= stats.pages == 14
    assert stats.queued_s > 0
    await engine.close()
    with pytest.raises(ConfigError, match="one context of 200 tokens"):
        open_engine(model, memory_bytes=bytes_per_context - 1)


async def test_a_cancelled_sample_frees_its_pages():
    model = build("llama")
    engine = open_engine(model, stops=(), memory_bytes=7 * PAGE * 3 * 2 * 2 * 12 * 4)  # one context
    long = asyncio.create_task(engine.sample(Prompt(tokens_of(1, 10)), SamplingParams(150)))
    queued = asyncio.create_task(engine.sample(Prompt(tokens_of(2, 10)), SamplingParams(150)))
    await until(engine, lambda stats: stats.sampled_tokens >= 2)
    long.cancel()
    queued.cancel()
    assert_exact(model, await play(engine, tokens_of(3, 10), 2, 1))
    assert long.cancelled()
    assert queued.cancelled()
    assert engine.stats().sampled_tokens < 150
    await engine.close()


async def test_a_failed_step_fails_its_requests_and_the_engine_goes_on():
    model = build("llama")
    engine = open_engine(model)
    broken = [(name, torch.full_like(p, torch.nan)) for name, p in model.named_parameters() if "norm" in name]
    await engine.publish(broken, 1)
    results = await asyncio.gather(
        *[engine.sample(Prompt(tokens_of(n, 10)), SamplingParams(4)) for n in range(3)], return_exceptions=True
    )
    assert all(isinstance(result, InfrastructureError) and "not finite" in str(result) for result in results)
    assert all(result.__cause__ is not None for result in results)
    await engine.publish(model.named_parameters(), 2)
    assert_exact(model, await play(engine, tokens_of(0, 10), 2, 1))
    await engine.close()


async def test_close_fails_what_is_under_way():
    engine = open_engine(build("llama"), stops=())
    under_way = asyncio.create_task(engine.sample(Prompt(tokens_of(1, 10)), SamplingParams(150)))
    await until(engine, lambda stats: stats.sampled_tokens >= 1)
    reading, closing = threading.Event(), threading.Event()

    def weights():
        reading.set()
        assert closing.wait(100)  # still at it when the engine closes
        yield from ()

    publishing = asyncio.create_task(engine.publish(weights(), 1))
    while not reading.is_set():  # noqa: ASYNC110 (it is set in another thread)
        await asyncio.sleep(0)
    closed = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    closing.set()
    await closed
    for asked in (under_way, publishing):
        with pytest.raises(InfrastructureError, match="closed"):
            await asked
    with pytest.raises(InfrastructureError, match="closed"):
        await engine.sample(Prompt(tokens_of(1, 10)), SamplingParams(2))
    await engine.close()


def test_an_engine_serves_one_event_loop_after_another():
    model = build("llama")
    engine = open_engine(model)

    async def once() -> Sample:
        return await engine.sample(Prompt(tokens_of(1, 10)), SamplingParams(4, seed=3))

    first, second = asyncio.run(once()), asyncio.run(once())
    np.testing.assert_array_equal(first.tokens, second.tokens)
    asyncio.run(engine.close())


def test_models_that_do_not_attend_through_transformers_interface_are_refused():
    mamba = MambaForCausalLM(MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(ModelError, match="cannot sample from such a model"):
        Engine(mamba, stops=(), max_context=32)


async def test_learned_positions_work_too():
    model = build("gpt2")
    engine = open_engine(model)
    assert_exact(model, await play(engine, tokens_of(3, 20), 2, 8))
    await engine.close()


async def test_a_model_whose_projections_are_no_linear_layers_is_sampled_in_bf16():
    engine = open_engine(build("gpt2").to(torch.bfloat16))
    sample = await engine.sample(Prompt(tokens_of(3, 20)), SamplingParams(max_tokens=4, seed=1))
    assert 1 <= len(sample.tokens) <= 4
    await engine.close()


def test_the_engines_model_cannot_be_called_without_it():
    model = twin(build("llama"))
    Engine(model, stops=(), max_context=32)
    with pytest.raises(ModelError, match="without a layout"):
        model(torch.zeros(1, 2, dtype=torch.long))


async def test_without_a_compiler_torch_does_what_the_kernel_would(tmp_path, monkeypatch):
    monkeypatch.setenv("SOJOURN_CACHE", str(tmp_path))
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    for name in (str(broken), "no-such-compiler"):
        monkeypatch.setenv("CC", name)
        compiler.compiled.cache_clear()
        model = build("llama")
        engine = open_engine(model)
        assert engine._runner._kernel is None
        assert_exact(model, await play(engine, tokens_of(3, 50), 2, 1))
        await engine.close()
    compiler.compiled.cache_clear()


def test_a_sentence_says_why_no_kernel_can_be_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("SOJOURN_CACHE", str(tmp_path))
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'kernel.c:1: fatal error: math.h: No such file' >&2\nexit 1\n")
    broken.chmod(0o755)
    said = "the kernels of backend 'torch' are not used, and torch computes the same more slowly: "
    for name, why in (
        ("no-such-compiler", "there is no C compiler 'no-such-compiler': install gcc"),
        (str(broken), f"the C compiler '{broken}' fails (kernel.c:1: fatal error: math.h: No such file): mend it"),
    ):
        monkeypatch.setenv("CC", name)
        (sentence,) = Torch(device="cpu").slowdowns(TINY)
        assert sentence.startswith(said + why)
        assert Torch(device="cpu", kernel=False).slowdowns(TINY) == ()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_nothing_is_said_where_kernels_can_be_compiled(tmp_path, monkeypatch):
    assert Torch(device="cpu").slowdowns(TINY) == ()
    (tmp_path / "file").touch()
    monkeypatch.setenv("SOJOURN_CACHE", str(tmp_path / "file"))
    assert "SOJOURN_CACHE" in Torch(device="cpu").slowdowns(TINY)[0]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(("family", "slow"), [("phi", True), ("gemma3", True), ("gpt2", True), ("qwen3", False)])
def test_a_kind_that_no_kernel_samples_from_is_said(tmp_path, family, slow):
    build(family).save_pretrained(tmp_path)
    said = Torch(device="cpu").slowdowns(Model(name=str(tmp_path)))
    assert [f"is of the kind '{family}" in sentence for sentence in said] == [True] * slow
    assert Torch(device="cpu", kernel=False).slowdowns(Model(name=str(tmp_path))) == ()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(("architecture", "slow"), [("gemma3", True), ("qwen2", False)])
def test_the_kind_of_a_gguf_file_is_known_before_it_is_converted(tmp_path, architecture, slow):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", architecture)
    writer.add_context_length(128)
    writer.add_token_list(["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    said = Torch(device="cpu").slowdowns(Model(name=str(tmp_path / "small.gguf")))
    assert [f"is of the kind '{architecture}'" in sentence for sentence in said] == [True] * slow
    data = (tmp_path / "small.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[:30])  # told where it is converted
    assert Torch(device="cpu").slowdowns(Model(name=str(tmp_path / "cut.gguf"))) == ()


def test_the_kernel_is_compiled_once_and_works_without_shared_threads(tmp_path, monkeypatch):
    monkeypatch.setenv("SOJOURN_CACHE", str(tmp_path))
    compiler.compiled.cache_clear()
    monkeypatch.setattr(compiler, "openmp", lambda: None)
    shapes, cpu = [Shape(2, 12, 12)] * 3, torch.device("cpu")
    assert kernels.load(shapes, 4, torch.float32, cpu) is not None
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "kernels").iterdir()}
    compiler.compiled.cache_clear()
    assert kernels.load(shapes, 4, torch.float32, cpu) is not None
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "kernels").iterdir()} == made
    assert kernels.load([Shape(2, 12, 12), Shape(1, 12, 12)], 4, torch.float32, cpu) is None
    compiler.compiled.cache_clear()


@KERNELS
@pytest.mark.parametrize("family", FAMILIES)
async def test_half_precision_stays_as_near_the_whole_as_in_transformers(family, kernel):
    model = build(family)
    half = twin(model).to(torch.bfloat16)
    engine = open_engine(half, kernel=kernel)
    told = flat(await asyncio.gather(*[play(engine, tokens_of(1, 30 + n), 2, n) for n in range(3)]))
    ours, theirs = [], []
    for prompt, sample in told:
        exact = logprobs_of(model, prompt, sample.tokens)
        ours.append(sample.logprobs - exact)
        theirs.append(logprobs_of(half, prompt, sample.tokens) - exact)
    assert np.abs(np.concatenate(ours)).mean() < 1.5 * np.abs(np.concatenate(theirs)).mean()
    await engine.close()
