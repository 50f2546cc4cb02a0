"""What replicas, workers and ranks on Ray say of themselves, and what is said of those that are stopped or killed."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from made import batch
from ray_actors import start_anywhere
from sampler_requests import params, pid, prompt, until

from sojourn.abilities import ANSWER_S, PartLoad, PartState, ReportsParts
from sojourn.backends.ray.backend import Ray
from sojourn.backends.ray.env_family import RemoteFamily
from sojourn.backends.ray.sampler_engines import Samplers
from sojourn.envs.toy import Toy
from sojourn.errors import RankError
from sojourn.losses.nll import NLL
from sojourn.models.spec import Model
from sojourn.optim import Optim
from sojourn.protocols import Opened
from sojourn.render.auto import Auto
from sojourn.rollout.world import open_world

MODEL = Model(name="tiny:layers=1,hidden=64", dtype="fp32")
TINY = Ray(max_context=512, memory_gb=0.05, samplers=Samplers(replicas=2), patience_s=60)


@asynccontextmanager
async def opened() -> AsyncIterator[Opened]:
    found = TINY.open(MODEL, Auto(), seed=3)
    try:
        yield found
    finally:
        await found.sampler.close()
        found.trainer.close()


async def loads(of: Any) -> dict[str, PartLoad]:
    """Returns what a reporter says, by the names of its parts."""
    assert isinstance(of, ReportsParts)
    began = time.monotonic()
    found = {part.name: part for part in await of.part_loads()}
    assert time.monotonic() - began < ANSWER_S + 1
    return found


async def once_in(of: Any, name: str, state: PartState) -> dict[str, PartLoad]:
    """Returns what a reporter says once one of its parts is in a state."""
    async with asyncio.timeout(120):
        while (found := await loads(of))[name].state is not state:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found


async def test_replicas_and_ranks_of_a_run(cluster):
    async with opened() as (trainer, sampler, *_):
        first = await loads(sampler)
        assert list(first) == ["sampler 0", "sampler 1"]
        await asyncio.gather(*(sampler.sample(prompt(n), params(n, 100)) for n in range(8)))
        for replica in (await loads(sampler)).values():
            assert replica.state is PartState.UP
            assert replica.facts["device"] == "cpu"
            assert replica.facts["engine"] == "sojourn"
            assert replica.facts["process"] != str(os.getpid())
            assert replica.numbers["memory_bytes"] > 1 << 26
            assert 0 < replica.numbers["busy_share"] <= 1
            assert replica.numbers["sampled_tokens_per_s"] > 0
            assert replica.numbers["requests_mean"] > 0
            assert replica.numbers["weights_version"] == replica.numbers["restarts"] == 0
        assert (await loads(sampler))["sampler 0"].numbers["sampled_tokens_per_s"] == 0
        [before] = (await loads(trainer)).values()
        assert (before.name, before.kind, before.state) == ("trainer rank 0", "trainer rank", PartState.UP)
        trainer.begin(Optim(), 3, reference=False)
        await trainer.forward_backward(batch(np.random.default_rng(0)), [NLL()])
        [rank] = (await loads(trainer)).values()
        assert rank.numbers["passes"] == 1
        assert rank.numbers["last_pass_s"] > 0
        assert 0 < rank.numbers["busy_share"] <= 1
        assert rank.numbers["memory_bytes"] > 1 << 26
        assert rank.facts["device"] == "cpu"
        await trainer.publish()
        await until(lambda: all(replica.version == 1 for replica in sampler.replicas))  # type: ignore[attr-defined]
        assert [one.numbers["weights_version"] for one in (await loads(sampler)).values()] == [1, 1]


async def test_a_replica_that_hangs_is_silent_and_one_that_dies_is_down_until_it_is_back(cluster):
    async with opened() as (_, sampler, *_):
        replicas = sampler.replicas  # type: ignore[attr-defined]
        processes = [pid(cluster, replica.actor) for replica in replicas]
        await loads(sampler)
        os.kill(processes[0], signal.SIGSTOP)
        try:
            found = await loads(sampler)
            assert [one.state for one in found.values()] == [PartState.SILENT, PartState.UP]
            assert found["sampler 0"].seen_s == pytest.approx(ANSWER_S, abs=1)
            assert "has not answered within 2 s" in found["sampler 0"].note
            assert found["sampler 0"].facts["process"] == str(processes[0]), "what is known of it is still said"
        finally:
            os.kill(processes[0], signal.SIGCONT)
        assert (await loads(sampler))["sampler 0"].state is PartState.UP
        os.kill(processes[1], signal.SIGKILL)
        found = await once_in(sampler, "sampler 1", PartState.DOWN)
        assert "its process has ended" in found["sampler 1"].note
        assert found["sampler 0"].state is PartState.UP
        asked = [sampler.sample(prompt(n), params(n, 8)) for n in range(8)]  # by which the loss is noticed
        await asyncio.gather(*asked)
        found = await once_in(sampler, "sampler 1", PartState.UP)
        assert found["sampler 1"].numbers["restarts"] == 1
        assert found["sampler 1"].facts["process"] != str(processes[1])


async def test_workers_of_a_world(cluster):
    toy = Toy(rooms=2)
    family = RemoteFamily(toy, 2, start_anywhere(0.5))
    assert await loads(family) == {}, "before it is open"
    async with open_world(family):
        env = family.make(toy.tasks("train")[0])
        await env.start()
        found = await loads(family)
        assert list(found) == ["worker 0", "worker 1"]
        assert sorted(one.numbers["plays"] for one in found.values()) == [0, 1]
        for worker in found.values():
            assert (worker.kind, worker.state) == ("environment worker", PartState.UP)
            assert worker.facts["world"] == "Toy"
            assert worker.numbers["memory_bytes"] > 1 << 24
            assert worker.numbers["restarts"] == worker.numbers["plays_lost"] == worker.numbers["failures"] == 0
        [busy] = [one for one in found.values() if one.numbers["plays"]]
        os.kill(int(busy.facts["process"]), signal.SIGKILL)
        found = await once_in(family, busy.name, PartState.DOWN)
        assert found[busy.name].facts == busy.facts, "what is known of it is still said"
        found = await once_in(family, busy.name, PartState.UP)
        assert found[busy.name].numbers["restarts"] == 1
        assert found[busy.name].numbers["plays_lost"] == 1
        assert found[busy.name].numbers["plays"] == 0
        assert found[busy.name].facts["process"] != busy.facts["process"]
        await env.close()


async def test_a_play_that_begins_while_workers_are_asked_is_of_the_next_reading(cluster):
    toy = Toy(rooms=2)
    family = RemoteFamily(toy, 2, start_anywhere(0.5))
    async with open_world(family):
        await family.prepare(toy.tasks("train")[0])
        await loads(family)
        env = family.make(toy.tasks("train")[0])
        reading = asyncio.ensure_future(loads(family))
        for _ in range(10):  # until they are asked
            await asyncio.sleep(0)
        await env.start()
        begun = [
            sum(one.numbers["plays_begun"] for one in found.values()) for found in (await reading, await loads(family))
        ]
        assert begun == [0, 1]
        await env.close()


async def test_ranks_that_are_lost_are_down(cluster):
    async with opened() as (trainer, *_):
        trainer.begin(Optim(), 3, reference=False)
        await trainer.forward_backward(batch(np.random.default_rng(0)), [NLL()])
        [rank] = (await loads(trainer)).values()
        os.kill(int(rank.facts["process"]), signal.SIGSTOP)
        stuck = asyncio.ensure_future(trainer.forward_backward(batch(np.random.default_rng(0)), [NLL()]))
        await asyncio.sleep(0.5)
        [rank] = (await loads(trainer)).values()
        assert rank.state is PartState.UP
        assert 0.3 < rank.numbers["working_s"] < 5
        assert rank.numbers["passes"] == 0
        os.kill(int(rank.facts["process"]), signal.SIGKILL)
        with pytest.raises(RankError):
            await stuck
        [rank] = (await loads(trainer)).values()
        assert rank.state is PartState.DOWN
        assert "trainer rank 0 of 1" in rank.note
        assert rank.seen_s is not None
        assert rank.seen_s > 0.4
