"""What the engine and the trainer of one process say of themselves as parts of a run."""

import asyncio

import numpy as np
import pytest
from made import batch

from sojourn.abilities import PartState, ReportsParts
from sojourn.backends.torch.backend import Torch
from sojourn.losses.nll import NLL
from sojourn.models.spec import Model
from sojourn.optim import Optim
from sojourn.render.auto import Auto
from sojourn.types import Prompt, SamplingParams


@pytest.fixture
async def opened():
    backend = Torch(device="cpu", threads=1, max_context=512, memory_gb=0.05)
    found = backend.open(Model(name="tiny:layers=1,hidden=64", dtype="fp32"), Auto(), seed=0)
    yield found
    await found.sampler.close()
    found.trainer.close()


async def test_the_engine_says_what_it_samples(opened):
    engine = opened.sampler
    assert isinstance(engine, ReportsParts)
    [idle] = await engine.part_loads()
    assert (idle.name, idle.kind, idle.state) == ("sampler", "sampler", PartState.UP)
    assert idle.facts["device"] == "cpu"
    assert idle.facts["engine"] == "sojourn"
    assert idle.numbers["busy_share"] == idle.numbers["sampled_tokens_per_s"] == 0
    asked = [engine.sample(Prompt(np.arange(100)), SamplingParams(64, seed=n)) for n in range(4)]
    await asyncio.gather(*asked)
    await asyncio.sleep(0.01)
    [busy] = await engine.part_loads()
    assert 0.3 < busy.numbers["busy_share"] < 1
    assert 1 < busy.numbers["requests_mean"] < 4
    assert busy.numbers["sampled_tokens_per_s"] > 0
    assert busy.numbers["prefix_reuse_share"] > 0.5
    assert 0 < busy.numbers["cache_share"] < 1
    [after] = await engine.part_loads()
    assert after.numbers["sampled_tokens_per_s"] == after.numbers["busy_share"] == 0


async def test_a_request_that_is_sampled_is_running(opened):
    asked = asyncio.ensure_future(opened.sampler.sample(Prompt(np.arange(8)), SamplingParams(400, seed=0)))
    await asyncio.sleep(0.05)
    [load] = await opened.sampler.part_loads()
    assert load.numbers["running"] == 1
    await asked


async def test_the_trainer_says_how_long_its_passes_take(opened):
    trainer = opened.trainer
    assert isinstance(trainer, ReportsParts)
    trainer.begin(Optim(), 3, reference=False)
    await trainer.part_loads()
    for _ in range(2):
        await trainer.forward_backward(batch(np.random.default_rng(0)), [NLL()])
    await trainer.optim_step()
    [load] = await trainer.part_loads()
    assert (load.name, load.kind) == ("trainer", "trainer")
    assert load.numbers["passes"] == 2
    assert 0 < load.numbers["last_pass_s"] < 60
    assert 0 < load.numbers["busy_share"] <= 1
    [after] = await trainer.part_loads()
    assert after.numbers["passes"] == after.numbers["busy_share"] == 0
