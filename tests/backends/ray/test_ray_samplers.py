"""Replicas of a sampler: each sample is what one engine returns, whichever replica answers and whichever dies."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from sojourn.backends.ray.backend import Ray, Samplers
from sojourn.backends.ray.packed_weights import pack
from sojourn.backends.ray.samplers import BLOCK, ReplicatedSampler
from sojourn.errors import BudgetError, InfrastructureError
from sojourn.models.spec import Model
from sojourn.protocols import Opened
from sojourn.render.auto import Auto
from sojourn.types import Prompt, Sample, SamplingParams

MODEL = Model(name="tiny:layers=1,hidden=64", dtype="fp32")
TINY = Ray(max_context=512, memory_gb=0.05, samplers=Samplers(replicas=2), patience_s=60)
SEEDS = range(12)


@asynccontextmanager
async def opened(backend: Ray = TINY) -> AsyncIterator[tuple[Opened, ReplicatedSampler]]:
    found = backend.open(MODEL, Auto(), seed=3)
    assert isinstance(found.sampler, ReplicatedSampler)
    try:
        yield found, found.sampler
    finally:
        await found.sampler.close()
        found.trainer.close()


def prompt(number: int, length: int = 2 * BLOCK + 5) -> Prompt:
    return Prompt(np.random.default_rng(number).integers(20, 120, length))


def params(seed: int, tokens: int = 16) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, seed=seed)


async def sampled(sampler: Any, count: int = len(SEEDS), tokens: int = 16) -> list[Sample]:
    """Returns samples of several prompts, of two seeds each, all asked for at once."""
    return await asyncio.gather(*(sampler.sample(prompt(n // 2), params(n, tokens)) for n in range(count)))


def same(one: list[Sample], other: list[Sample]) -> bool:
    return all(
        np.array_equal(a.tokens, b.tokens) and np.array_equal(a.logprobs, b.logprobs)
        for a, b in zip(one, other, strict=True)
    )


def pid(ray: Any, actor: Any) -> int:
    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.05)


async def alone(weights: list[Any] | None = None) -> list[Sample]:
    """Returns what one engine in this process samples, after given weights were published to it."""
    loaded = TINY.load(MODEL, 3)
    engine = TINY.sampler(loaded, MODEL, (loaded.tokenizer.convert_tokens_to_ids("<|im_end|>"),))
    try:
        if weights is not None:
            await engine.publish(iter(weights), 1)
        return await sampled(engine)
    finally:
        await engine.close()


def changed(found: Opened) -> list[Any]:
    """Changes the trainer's weights, and returns those."""
    import torch

    trainer: Any = found.trainer
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(0.05 * torch.ones_like(parameter).cumsum(0).sin())
    return [(name, tensor.detach().clone()) for name, tensor in trainer.model.named_parameters()]


async def test_samples_are_those_of_one_engine(cluster):
    async with opened() as (_, sampler):
        found = await sampled(sampler)
        assert same(found, await alone())
        assert {replica.version for replica in sampler.replicas} == {0}
        shares = [(await replica.actor.stats.remote()).requests for replica in sampler.replicas]
        assert min(shares) > 0  # both took part


async def test_scores_are_those_of_one_engine(cluster):
    async with opened() as (_, sampler):
        loaded = TINY.load(MODEL, 3)
        engine = TINY.sampler(loaded, MODEL, ())
        expected = await engine.score(prompt(1))
        await engine.close()
        assert np.array_equal(await sampler.score(prompt(1)), expected)


async def test_a_request_goes_where_its_prefix_is_cached(cluster):
    async with opened() as (_, sampler):
        first = await sampler.sample(prompt(0), params(0))
        others = await asyncio.gather(*(sampler.sample(prompt(n), params(n)) for n in range(1, 4)))
        assert len(others) == 3
        longer = np.concatenate([prompt(0).tokens, first.tokens, prompt(9, 2 * BLOCK).tokens])
        sampler.metrics()
        await sampler.sample(Prompt(longer), params(1))
        assert sampler.metrics()["sampler_prefill_tokens"] < len(longer) - 2 * BLOCK + 1  # the other replica needs all


async def test_a_replica_with_far_more_to_do_is_left(cluster):
    async with opened() as (_, sampler):
        await sampler.sample(prompt(0), params(0))
        await asyncio.gather(*(sampler.sample(prompt(0), params(n, 64)) for n in range(40)))
        metrics = sampler.metrics()
        assert metrics["sampler_moved"] > 0
        assert metrics["samplers_up"] == 2


async def test_new_weights_answer_every_later_request(cluster):
    async with opened() as (found, sampler):
        before = await sampled(sampler)
        weights = changed(found)
        assert await found.trainer.publish() == 1
        after = await sampled(sampler)
        assert same(after, await alone(weights))
        assert not same(after, before)
        assert all(sample.versions == (1, 1) for sample in after)


async def test_publishing_loses_no_request(cluster):
    async with opened() as (found, sampler):
        running = asyncio.ensure_future(sampled(sampler, 24, 64))
        await until(lambda: any(replica.running for replica in sampler.replicas))
        for _ in range(3):
            changed(found)
            await found.trainer.publish()
        samples = await running
        assert len(samples) == 24
        assert all(sample.versions.oldest <= sample.versions.newest <= 3 for sample in samples)
        assert (await sampler.sample(prompt(0), params(0))).versions == (3, 3)


async def test_a_killed_replica_changes_no_sample(cluster):
    async with opened() as (found, sampler):
        weights = changed(found)
        await found.trainer.publish()
        expected = await alone(weights)
        victim = sampler.replicas[0]
        process = pid(cluster, victim.actor)
        running = asyncio.ensure_future(sampled(sampler))
        await until(lambda: victim.running > 0)
        os.kill(process, signal.SIGKILL)
        assert same(await running, expected)
        assert same(await sampled(sampler), expected)
        await until(lambda: victim.version == 1)  # it came back, with the weights that were published
        assert pid(cluster, victim.actor) != process
        assert same(await sampled(sampler), expected)
        assert victim.failures == 1
        assert sampler.metrics()["sampler_asked_again"] > 0


async def test_a_replica_that_came_back_answers_nothing_by_old_weights(cluster):
    from sojourn.backends.ray.sampler_actor import StaleWeightsError

    async with opened() as (found, sampler):
        await found.trainer.publish()
        victim = sampler.replicas[0]
        await until(lambda: victim.version == 1)
        os.kill(pid(cluster, victim.actor), signal.SIGKILL)

        async def answered() -> BaseException:
            while True:
                try:
                    await victim.actor.sample.remote(prompt(0), params(0), 1)
                except cluster.exceptions.RayTaskError as error:
                    return error.cause
                except cluster.exceptions.RayActorError:
                    await asyncio.sleep(0.05)

        assert isinstance(await asyncio.wait_for(answered(), 60), StaleWeightsError)


async def test_without_any_replica_requests_fail_in_one_sentence(cluster):
    from dataclasses import replace

    async with opened(replace(TINY, patience_s=0.5)) as (_, sampler):
        for one in sampler.replicas:
            cluster.kill(one.actor)  # for good
        with pytest.raises(InfrastructureError, match="none of 2 samplers had weights of version 0 for"):
            await sampler.sample(prompt(0), params(0))


async def test_errors_of_a_replica_are_the_engines(cluster):
    async with opened() as (_, sampler):
        with pytest.raises(BudgetError, match=r"exceed the 512 of a context"):
            await sampler.sample(prompt(0, 512), params(0))
        assert all(replica.failures == 0 for replica in sampler.replicas)


async def test_a_cancelled_request_is_not_computed_further(cluster):
    async with opened() as (_, sampler):
        running = asyncio.ensure_future(sampler.sample(prompt(0, 8), params(0, 500)))
        await until(lambda: any(replica.running for replica in sampler.replicas))
        await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        before = [(await replica.actor.stats.remote()).rows for replica in sampler.replicas]
        await asyncio.sleep(0.5)
        after = [(await replica.actor.stats.remote()).rows for replica in sampler.replicas]
        assert max(b - a for a, b in zip(before, after, strict=True)) <= 2
        assert all(replica.running == 0 for replica in sampler.replicas)


async def test_closing_ends_every_process(cluster):
    async with opened() as (_, sampler):
        processes = [pid(cluster, replica.actor) for replica in sampler.replicas]
    await until(lambda: not any(os.path.exists(f"/proc/{process}") for process in processes))


def test_packed_weights_are_the_weights():
    import torch

    weights = [("a", torch.arange(6.0).view(2, 3)), ("b", torch.tensor(3, dtype=torch.int64)), ("c", torch.zeros(0))]
    found = dict(pack(weights).unpack())
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in weights)
    rounded = dict(pack(weights, torch.bfloat16).unpack())
    assert rounded["a"].dtype == torch.bfloat16
    assert rounded["b"].dtype == torch.int64
