"""The engine tells tokens while it draws them, and draws the same ones to the bit whether anybody listens or not."""

import asyncio

import numpy as np
import pytest
from adapted_models import random_adapter
from engine_models import STOP, VOCABULARY, build, twin

from sojourn.abilities import TellsTokens, sample_telling
from sojourn.backends.torch.sampler.adapter_sampler import AdapterSampler
from sojourn.backends.torch.sampler.engine import Engine
from sojourn.train.routed_sampler import RoutedSampler
from sojourn.types import Prompt, SamplingParams, Stop

CHOICES = ((5, 6, 7, 8), (5, 6, 9, 10), (5, 6, 9, 11))
ASKED = [
    SamplingParams(12, seed=1),
    SamplingParams(1, seed=2),
    SamplingParams(9, temperature=0, stop_tokens=(4, 5, 6, 7, 8, 9, 10)),
    SamplingParams(9, seed=3, choices=CHOICES),
    SamplingParams(9, seed=3, choices=CHOICES[:1]),
    SamplingParams(30, seed=4, stop_strings=("1", "2")),
]


def open_engine(**changes):
    more = {"stops": (STOP,), "max_context": 200, "prefill_chunk": 16, "decode": lambda tokens: str(list(tokens))}
    return Engine(twin(build("llama")), **{**more, **changes})


def prompt(seed, count=20):
    return Prompt(np.random.default_rng(seed).integers(4, VOCABULARY, count))


def same(one, other):
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.logprobs.tobytes() == other.logprobs.tobytes()
    assert (one.versions, one.stop) == (other.versions, other.stop)


async def test_the_tokens_told_are_those_of_the_sample_which_is_the_same_to_the_bit():
    quiet, telling = open_engine(), open_engine()
    told = [list[list[int]]() for _ in ASKED]
    alone = await asyncio.gather(*(quiet.sample(prompt(n), params) for n, params in enumerate(ASKED)))
    asked = [
        sample_telling(telling, prompt(n), params, told[n].append if n != 1 else None) for n, params in enumerate(ASKED)
    ]
    found = await asyncio.gather(*asked)
    for number, (one, other) in enumerate(zip(alone, found, strict=True)):
        same(one, other)
        batches = told[number]
        assert [token for batch in batches for token in batch] == ([] if number in (1, 4) else one.tokens.tolist())
        assert all(batches)
    assert len(told[0]) == len(alone[0].tokens), "each token of a free sample by itself"
    assert told[3][0] == [5, 6, told[3][0][-1]], "tokens without an alternative come with the first that has one"
    assert quiet.stats().steps == telling.stats().steps
    await asyncio.gather(quiet.close(), telling.close())


async def test_tokens_are_told_before_the_sample_ends():
    engine, seen = open_engine(), list[str]()
    asked = engine.sample_telling(prompt(0), SamplingParams(6, seed=1), lambda tokens: seen.append(f"{len(tokens)}"))
    task = asyncio.create_task(asked)
    task.add_done_callback(lambda _: seen.append("end"))
    while not seen:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert not task.done()
    sample = await task
    await asyncio.sleep(0)
    assert seen == ["1"] * len(sample.tokens) + ["end"]
    await engine.close()


async def test_what_a_listener_raises_fails_no_request():
    engine, heard = open_engine(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context["exception"]))

    def broken(tokens):
        raise RuntimeError("nobody can hear this")

    asked = [engine.sample_telling(prompt(n), SamplingParams(6, seed=n), tell) for n, tell in ((0, broken), (1, None))]
    samples = await asyncio.gather(*asked)
    assert [sample.stop in (Stop.LENGTH, Stop.END) for sample in samples] == [True, True]
    assert len(heard) == len(samples[0].tokens)
    await engine.close()


@pytest.mark.parametrize("in_flight", ["keep", "recompute", "drain"])
async def test_each_token_is_told_once_though_weights_change_meanwhile(in_flight):
    engine, told = open_engine(in_flight=in_flight), list[int]()
    task = asyncio.create_task(engine.sample_telling(prompt(0), SamplingParams(10, seed=1), told.extend))
    while len(told) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await engine.publish([], 1)
    sample = await task
    assert sample.versions.newest == (0 if in_flight == "drain" else 1)
    assert told == sample.tokens.tolist()
    await engine.close()


async def test_samplers_before_an_engine_pass_on_what_it_tells():
    model = build("llama")
    engine = open_engine()
    await engine.add_adapter("other", random_adapter(model, 1))
    routed = RoutedSampler(engine, {"other": AdapterSampler(engine, "other")})
    for name in ("policy", "other"):
        told = list[int]()
        assert isinstance(routed, TellsTokens)
        params = SamplingParams(5, seed=1, model=name)
        sample = await routed.sample_telling(prompt(0), params, told.extend)
        assert told == sample.tokens.tolist()
        same(sample, await routed.sample(prompt(0), params))
    await engine.close()
