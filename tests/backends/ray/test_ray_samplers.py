"""Replicas of a sampler: each sample is what one engine returns, whichever replica answers and whichever dies."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from adapted_models import random_adapter
from safetensors.torch import save_file
from sampler_requests import a_moment, changed, params, pid, prompt, same, sampled, stopped, until

from sojourn.activation_steering import Steering
from sojourn.agents.choice_probabilities import choice_probabilities
from sojourn.backends.ray.adapters import adapters_over
from sojourn.backends.ray.backend import Ray
from sojourn.backends.ray.cluster import Cluster
from sojourn.backends.ray.packed_weights import PackedWeights, pack
from sojourn.backends.ray.sampler_actor import SamplerActor, StaleWeightsError
from sojourn.backends.ray.sampler_engines import Samplers
from sojourn.backends.ray.samplers import BLOCK, ReplicatedSampler
from sojourn.backends.torch.trainer.weight_files import WEIGHTS
from sojourn.errors import BudgetError, InfrastructureError
from sojourn.models.spec import Lora, Model
from sojourn.protocols import Opened
from sojourn.render.auto import Auto
from sojourn.types import Prompt, Sample

MODEL = Model(name="tiny:layers=1,hidden=64", dtype="fp32")
TINY = Ray(max_context=512, memory_gb=0.05, samplers=Samplers(replicas=2), patience_s=60)


@asynccontextmanager
async def opened(backend: Ray = TINY) -> AsyncIterator[tuple[Opened, ReplicatedSampler]]:
    """Opens a backend of its own, for tests that kill a replica or look at a run's end."""
    found = backend.open(MODEL, Auto(), seed=3)
    assert isinstance(found.sampler, ReplicatedSampler)
    try:
        yield found, found.sampler
    finally:
        await found.sampler.close()
        found.trainer.close()


class Shared(NamedTuple):
    """Two replicas that several tests use one after another, and the weights that they begin with."""

    ray: Any
    cluster: Cluster
    actors: list[Any]
    weights: Any
    stops: tuple[int, ...]


@pytest.fixture(scope="module")
def shared(cluster) -> Iterator[Shared]:
    needs = TINY.needs["samplers"]
    joined, loaded = Cluster.join("", [needs]).hold(), TINY.load(MODEL, 3)
    stops = tuple(Auto().bind(loaded.tokenizer, loaded.template).stops)
    actors = [joined.actor(SamplerActor, needs, number, TINY, MODEL, 3, stops) for number in range(needs.count)]
    assert all(said.max_context == TINY.max_context for said in cluster.get([actor.open.remote() for actor in actors]))
    yield Shared(cluster, joined, actors, loaded.model.state_dict(), stops)
    for actor in actors:
        cluster.kill(actor)
    joined.release()


@pytest.fixture
async def sampler(shared: Shared) -> ReplicatedSampler:
    begun = shared.ray.put(pack(shared.weights.items()))
    await asyncio.gather(*(actor.load.remote(begun, 0) for actor in shared.actors))
    return ReplicatedSampler(shared.actors, shared.cluster, max_context=TINY.max_context)


async def alone(shared: Shared, weights: Mapping[str, Any] | None = None) -> list[Sample]:
    """Returns what one engine in this process samples, after given weights were published to it."""
    engine = TINY.open_sampler(TINY.load(MODEL, 3), MODEL, shared.stops)
    try:
        if weights is not None:
            await engine.publish(iter(weights.items()), 1)
        return await sampled(engine)
    finally:
        await engine.close()


async def test_the_probabilities_of_choices_are_those_of_one_engine(shared, sampler):
    choices = ((20, 21, 22), (20, 21, 23), (30,), (40, 41))
    engine = TINY.open_sampler(TINY.load(MODEL, 3), MODEL, shared.stops)
    try:
        for number in range(4):
            asked = [choice_probabilities(one, prompt(number), choices, params(number)) for one in (sampler, engine)]
            ours, theirs = await asyncio.gather(*asked)
            assert ours == theirs
            assert sum(ours) == pytest.approx(1.0)
    finally:
        await engine.close()


async def test_samples_are_those_of_one_engine(shared, sampler):
    assert same(await sampled(sampler), await alone(shared))
    shares = [(await actor.stats.remote()).requests for actor in shared.actors]
    assert min(shares) > 0  # both took part


async def test_steered_samples_are_those_of_one_engine(shared, sampler):
    steering = Steering(0, np.linspace(-2, 2, 64, dtype=np.float32).tobytes())
    asked = [(prompt(number), params(number, steering=steering)) for number in range(6)]
    engine = TINY.open_sampler(TINY.load(MODEL, 3), MODEL, shared.stops)
    try:
        found, expected = [await asyncio.gather(*(one.sample(*a) for a in asked)) for one in (sampler, engine)]
        plain = await asyncio.gather(*(engine.sample(p, replace(given, steering=None)) for p, given in asked))
    finally:
        await engine.close()
    assert same(found, expected)
    assert not same(found, plain)


async def test_scores_are_those_of_one_engine(shared, sampler):
    engine = TINY.open_sampler(TINY.load(MODEL, 3), MODEL, shared.stops)
    expected = await engine.score(prompt(1))
    await engine.close()
    assert np.array_equal(await sampler.score(prompt(1)), expected)


async def test_a_request_goes_where_its_prefix_is_cached(sampler):
    busy = asyncio.ensure_future(sampler.sample(prompt(5), params(5, 300)))
    await until(lambda: any(replica.running for replica in sampler.replicas), pause_s=0)
    first = await sampler.sample(prompt(0), params(0))  # by the other one, which has nothing to do
    await busy
    longer = np.concatenate([prompt(0).tokens, first.tokens, prompt(9, 2 * BLOCK).tokens])
    sampler.metrics()
    await sampler.sample(Prompt(longer), params(1))
    assert sampler.metrics()["sampler_prefill_tokens"] < len(longer) - 2 * BLOCK + 1  # the other one needs all


async def test_a_replica_with_far_more_to_do_is_left(sampler):
    await sampler.sample(prompt(0), params(0))
    await asyncio.gather(*(sampler.sample(prompt(0), params(n, 64)) for n in range(40)))
    metrics = sampler.metrics()
    assert metrics["sampler_moved"] > 0
    assert metrics["samplers_up"] == 2


async def test_new_weights_answer_every_later_request(shared, sampler):
    before = await sampled(sampler)
    weights = changed(shared.weights)
    await sampler.publish(shared.ray.put(pack(weights.items())), 1)
    after = await sampled(sampler)
    assert same(after, await alone(shared, weights))
    assert not same(after, before)
    assert all(sample.versions == (1, 1) for sample in after)


async def test_publishing_loses_no_request(shared, sampler):
    with stopped(*(pid(shared.ray, actor) for actor in shared.actors)):
        running = asyncio.ensure_future(sampled(sampler, 24, 64))
        await a_moment()
        assert all(replica.running for replica in sampler.replicas)
    for version in (1, 2, 3):
        await sampler.publish(shared.ray.put(pack(changed(shared.weights, version / 50).items())), version)
    samples = await running
    assert len(samples) == 24
    assert all(sample.versions.oldest <= sample.versions.newest <= 3 for sample in samples)
    assert (await sampler.sample(prompt(0), params(0))).versions == (3, 3)


async def test_what_began_before_is_answered_by_the_weights_of_its_beginning(shared, sampler, tmp_path):
    """While new weights are on their way, only requests that need them wait."""
    come = tmp_path / "come"

    def held(weights: PackedWeights) -> PackedWeights:
        while not come.exists():
            time.sleep(0.05)
        return weights

    begun = sampler.since_now()
    before = await sampled(sampler)
    packed = pack(changed(shared.weights).items())
    await sampler.publish(shared.ray.remote(held).options(num_cpus=0).remote(packed), 1)
    waiting = asyncio.ensure_future(sampled(sampler))
    later = asyncio.ensure_future(sampled(sampler.since_now()))
    meanwhile = await sampled(begun)
    assert same(meanwhile, before)
    assert all(sample.versions == (0, 0) for sample in meanwhile)
    assert not waiting.done()
    assert not later.done()
    come.touch()
    for samples in (await waiting, await later, await sampled(begun)):
        assert all(sample.versions == (1, 1) for sample in samples)


async def test_weights_come_in_between_opening_and_answering(shared, sampler):
    """A replica that was started anew, and has opened its model, has not the weights that are asked for."""
    with pytest.raises(shared.ray.exceptions.RayTaskError) as caught:
        await shared.actors[0].sample.remote(prompt(0), params(0), 1)
    assert isinstance(caught.value.cause, StaleWeightsError)


async def test_a_killed_replica_changes_no_sample(cluster, shared):
    async with opened() as (found, sampler):
        assert await found.trainer.publish() == 1
        await until(lambda: all(replica.version == 1 for replica in sampler.replicas))
        expected = await alone(shared)
        victim = sampler.replicas[0]
        await until(lambda: victim.version == 1)  # else the other one might have all requests
        process = pid(cluster, victim.actor)
        with stopped(process):
            running = asyncio.ensure_future(sampled(sampler))
            await a_moment()
            assert victim.running > 0
            os.kill(process, signal.SIGKILL)
        assert same(await running, expected)
        assert same(await sampled(sampler), expected)
        await until(lambda: victim.version == 1)  # it came back, with the weights that were published
        assert pid(cluster, victim.actor) != process
        assert same(await sampled(sampler), expected)
        assert victim.failures >= 1  # what was sent while it came back may be lost as well
        assert sampler.metrics()["sampler_asked_again"] > 0
        processes = [pid(cluster, replica.actor) for replica in sampler.replicas]
    await until(lambda: not any(os.path.exists(f"/proc/{process}") for process in processes))


async def test_without_any_replica_requests_fail_in_one_sentence(cluster):
    async with opened(replace(TINY, patience_s=0.5)) as (_, sampler):
        processes = [pid(cluster, one.actor) for one in sampler.replicas]
        for one in sampler.replicas:
            cluster.kill(one.actor)  # for good, but not at once
        await until(lambda: not any(os.path.exists(f"/proc/{process}") for process in processes))
        with pytest.raises(InfrastructureError, match="none of 2 samplers had weights of version 0 for"):
            await sampler.sample(prompt(0), params(0))


async def test_errors_of_a_replica_are_the_engines(sampler):
    with pytest.raises(
        BudgetError, match=r"^a prompt of 512 tokens and 16 to sample exceed the 512 of a context"
    ) as caught:
        await sampler.sample(prompt(0, 512), params(0))
    assert type(caught.value) is BudgetError  # and no error of Ray's with a traceback in its text
    assert all(replica.failures == 0 for replica in sampler.replicas)


async def test_a_cancelled_request_is_not_computed_further(sampler):
    async def rows() -> int:
        return sum(said.rows for said in await asyncio.gather(*(one.actor.stats.remote() for one in sampler.replicas)))

    def asked(count: int):
        return asyncio.gather(
            *(sampler.sample(prompt(n, 8), params(n, 500)) for n in range(count)), return_exceptions=True
        )

    begun = await rows()
    await asked(100)
    tenth = await rows() - begun
    begun += tenth
    running = asked(1000)  # whoever looks on sees it tenths of a second later
    for _ in range(1000):
        if await rows() > begun:
            break
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    before = -1
    while (now := await rows()) != before:  # the replicas hear of it meanwhile
        before = now
        await asyncio.sleep(0.3)
    assert now - begun < 9 * tenth
    assert all(replica.running == 0 for replica in sampler.replicas)


async def test_a_snapshot_that_is_closed_while_it_samples_leaves_its_name_free(shared, sampler, tmp_path):
    model = TINY.load(MODEL, 3).model
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        pairs = random_adapter(model, number).items()
        names = {"lora_A": "down", "lora_B": "up"}
        tensors = {
            f"base_model.model.{layer}.{name}.default.weight": getattr(pair, part).contiguous()
            for layer, pair in pairs
            for name, part in names.items()
        }
        save_file(tensors, tmp_path / str(number) / WEIGHTS)
    one = ReplicatedSampler(shared.actors[:1], shared.cluster, max_context=TINY.max_context)
    open_adapter = adapters_over(one, Lora(rank=4, alpha=4))

    async def drawn() -> int:
        return (await shared.actors[0].stats.remote()).sampled_tokens

    async def closed_while_it_samples(folder: str) -> Sample:
        snapshot, before = await open_adapter("past@0", tmp_path / folder), await drawn()
        asked = asyncio.create_task(snapshot.sample(prompt(1, 8), params(1, 500)))
        async with asyncio.timeout(60):
            while await drawn() == before:
                pass
        closing = asyncio.create_task(snapshot.close())
        await snapshots.put(asked)
        await closing
        return await asked

    snapshots = asyncio.Queue[asyncio.Task[Sample]]()
    first = asyncio.create_task(closed_while_it_samples("0"))
    await snapshots.get()
    second = await closed_while_it_samples("1")
    third = await closed_while_it_samples("0")
    assert same([await first], [third])
    assert not same([second], [third])


def test_packed_weights_are_the_weights():
    import torch

    weights = [("a", torch.arange(6.0).view(2, 3)), ("b", torch.tensor(3, dtype=torch.int64)), ("c", torch.zeros(0))]
    found = dict(pack(weights).unpack())
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in weights)
    rounded = dict(pack(weights, torch.bfloat16).unpack())
    assert rounded["a"].dtype == torch.bfloat16
    assert rounded["b"].dtype == torch.int64
