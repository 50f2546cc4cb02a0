"""A temperature so low that logits over it are not finite is refused, and fails no other sample."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_models import build

from sojourn.backends.torch.sampler import sampling
from sojourn.backends.torch.sampler.engine import Engine
from sojourn.config.fields import TEMPERATURE
from sojourn.config.registry import convert
from sojourn.errors import ConfigError, InfrastructureError, ModelError
from sojourn.models.spec import Sampling
from sojourn.types import Prompt, SamplingParams

SAID = "expected 0, or a number of at least 0.01"


@pytest.mark.parametrize("temperature", [1e-40, 0.005, -1.0, float("nan")])
async def test_a_request_at_too_low_a_temperature_is_refused(temperature):
    engine = Engine(build("llama"), stops=(2,), max_context=64, memory_bytes=1 << 24)
    with pytest.raises(ModelError, match=f"^sampling.temperature = {temperature:g}: {SAID}"):
        await engine.sample(Prompt(np.arange(9)), SamplingParams(4, temperature=temperature))
    assert len((await engine.sample(Prompt(np.arange(9)), SamplingParams(4, temperature=0.01))).tokens)
    await engine.close()


def test_a_config_has_no_such_temperature():
    with pytest.raises(ConfigError, match=SAID):
        convert(Sampling, {"temperature": 0.001}, "sampling")
    assert [TEMPERATURE.holds(t) for t in (0.0, 0.01, 0.005, 2.0)] == [True, True, False, True]


@pytest.mark.parametrize("kernel", [False, True])
async def test_a_request_whose_logits_are_not_finite_fails_alone(monkeypatch, kernel):
    engine = Engine(build("llama"), stops=(), max_context=64, memory_bytes=1 << 24, kernel=kernel)
    draw = sampling.draw

    def spoil(logits, rows, kernel=None):
        odd = torch.tensor([row.params.top_k == 7 for row in rows])
        return draw(logits.masked_fill(odd[:, None], torch.nan), rows, kernel)

    monkeypatch.setattr(sampling, "draw", spoil)
    plain = SamplingParams(4, seed=1)
    one, other = await asyncio.gather(
        engine.sample(Prompt(np.arange(9)), plain),
        engine.sample(Prompt(np.arange(8)), replace(plain, top_k=7)),
        return_exceptions=True,
    )
    assert len(one.tokens) == 4
    assert isinstance(other, InfrastructureError)
    assert "not finite" in str(other)
    await engine.close()
