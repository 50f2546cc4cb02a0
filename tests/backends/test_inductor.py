"""torch.compile as an option of the sampler: the same tokens, and none of it where it cannot work."""

import shutil

import pytest
import torch
from engine_models import build, twin
from torch._inductor import config as inductor

from sojourn.backends.torch.sampler.engine import Engine
from sojourn.types import Prompt, SamplingParams


def open_engine(model, compiled: bool) -> Engine:
    return Engine(twin(model), stops=(), max_context=128, compiled=compiled)


async def tokens_of(engine: Engine) -> list[list[int]]:
    """A long prompt, single tokens after it, and a second context beside them."""
    prompts = [Prompt(torch.arange(length).numpy() % 90) for length in (40, 7)]
    samples = [await engine.sample(prompt, SamplingParams(8, seed=1)) for prompt in prompts]
    return [sample.tokens.tolist() for sample in samples]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
async def test_compiled_layers_sample_the_same():
    model = build("gemma3")
    plain, fast = open_engine(model, False), open_engine(model, True)
    parts = [layer.mlp._compiled_call_impl for layer in fast._runner._model.model.layers]
    assert all(part is not None for part in parts)
    assert await tokens_of(plain) == await tokens_of(fast)
    await plain.close()
    await fast.close()


async def test_where_it_cannot_compile_the_layers_stay_as_they_were(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    model = build("gemma3")
    broken = inductor.patch({"cpp.cxx": ("no-such-compiler",), "fx_graph_cache": False})
    with broken, pytest.warns(RuntimeWarning, match="torch.compile does not work here"):
        made = open_engine(model, True)
    assert all(layer.mlp._compiled_call_impl is None for layer in made._runner._model.model.layers)
    plain = open_engine(model, False)
    assert await tokens_of(made) == await tokens_of(plain)
    await made.close()
    await plain.close()
    torch.compiler.reset()


def test_a_model_that_a_kernel_knows_is_not_compiled():
    made = open_engine(build("llama"), True)
    assert all(layer.mlp._compiled_call_impl is None for layer in made._runner._model.model.layers)
