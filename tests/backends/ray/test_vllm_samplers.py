"""Samplers whose engine is vLLM: real ones, of a tiny model in fp32, held against our own engine and transformers."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from sampler_requests import (
    a_moment,
    changed,
    params,
    pid,
    processes_of,
    prompt,
    sampled,
    until,
    wait_for_their_end,
)

from sojourn.backends.ray.backend import Ray
from sojourn.backends.ray.cluster import Cluster, answers
from sojourn.backends.ray.installed_vllm import installed_vllm
from sojourn.backends.ray.packed_weights import pack
from sojourn.backends.ray.sampler_actor import StaleWeightsError
from sojourn.backends.ray.sampler_engines import ENGINES, Samplers
from sojourn.backends.ray.samplers import ReplicatedSampler
from sojourn.backends.ray.vllm_mapping import Drawn
from sojourn.backends.torch.models.lora import merged
from sojourn.errors import BudgetError, InfrastructureError, ModelError
from sojourn.models.spec import Model
from sojourn.render.auto import Auto
from sojourn.types import IntArray, Prompt, Sample, Stop

if installed_vllm() is None:
    pytest.skip("vLLM is not installed: make vllm", allow_module_level=True)

ROOT = Path(__file__).parents[3]
MODEL = Model(name="tiny:layers=2,hidden=64", dtype="fp32")
TINY = Ray(max_context=512, memory_gb=0.05, max_batch=8, samplers=Samplers(engine="vllm", replicas=2))
EXACT = 1e-4
OFF = 1e-3  # what is off by as much was drawn by other weights
MODES = ("recompute", "keep", "drain")


class Shared(NamedTuple):
    """Two replicas that all tests use one after another, and the weights that they begin with."""

    ray: Any
    cluster: Cluster
    actors: list[Any]
    loaded: Any
    weights: dict[str, Any]
    stops: tuple[int, ...]

    def in_actor(self, number: int, work: Any) -> Any:
        return self.ray.get(self.actors[number].__ray_call__.remote(work))

    def packed(self, weights: Mapping[str, Any] | None = None) -> Any:
        return self.ray.put(pack((weights or self.weights).items()))

    def logprobs(self, prompt: IntArray, sample: Sample, weights: Mapping[str, Any] | None = None) -> np.ndarray:
        """Returns what transformers computes of the tokens of a sample."""
        self.loaded.model.load_state_dict(weights or self.weights, strict=False)  # the head is the embedding
        with torch.no_grad():
            logits = self.loaded.model(torch.from_numpy(np.concatenate([prompt, sample.tokens]))[None]).logits[0]
        logits = logits[len(prompt) - 1 : -1] / sample.temperature
        for row, allowed in zip(logits, sample.allowed or (), strict=False):
            kept = row[allowed].clone()
            row[:] = -torch.inf
            row[allowed] = kept
        return logits.log_softmax(-1).gather(1, torch.tensor(sample.tokens)[:, None])[:, 0].numpy()


@pytest.fixture(scope="module")
def shared(cluster) -> Iterator[Shared]:
    needs, loaded = TINY.needs["samplers"], TINY.load(MODEL, 3)
    joined = Cluster.join("", [needs]).hold()
    stops = tuple(Auto().bind(loaded.tokenizer, loaded.template).stops)
    made = ENGINES["vllm"].actor(TINY.samplers)
    given = (TINY, MODEL, 3, stops, *made.arguments)
    actors = [joined.actor(made.kind, needs, number, *given) for number in range(needs.count)]
    assert all(said.max_context == TINY.max_context for said in cluster.get([actor.open.remote() for actor in actors]))
    weights = {name: tensor.clone() for name, tensor in merged(loaded.model)}  # as a trainer publishes them
    yield Shared(cluster, joined, actors, loaded, weights, stops)
    for actor in actors:
        cluster.kill(actor)
    joined.release()


@pytest.fixture
async def sampler(shared: Shared) -> ReplicatedSampler:
    """Both replicas, with the first weights."""
    set_mode(shared, MODES[0])
    begun = shared.packed()
    await asyncio.gather(*(actor.load.remote(begun, 0) for actor in shared.actors))
    return ReplicatedSampler(shared.actors, shared.cluster, max_context=TINY.max_context, patience_s=120)


def set_mode(shared: Shared, mode: str) -> None:
    for number in range(len(shared.actors)):
        shared.in_actor(number, lambda self: setattr(self, "_in_flight", mode))


def close(found: np.ndarray, expected: np.ndarray, by: float = EXACT) -> bool:
    return float(np.abs(found - expected).max(initial=0.0)) < by


async def test_logprobs_are_those_of_our_engine_and_of_transformers(shared, sampler):
    engine = TINY.open_sampler(TINY.load(MODEL, 3), MODEL, shared.stops)
    for number, sample in enumerate(await sampled(sampler)):
        begun = prompt(number // 2).tokens
        scores = await engine.score(Prompt(np.concatenate([begun, sample.tokens])))
        assert close(sample.logprobs, scores[len(begun) - 1 :])
        assert close(sample.logprobs, shared.logprobs(begun, sample))
        assert close(await sampler.score(prompt(number)), await engine.score(prompt(number)))
    assert len(await sampler.score(Prompt(np.array([30])))) == 0
    longest = prompt(1, TINY.max_context)
    assert close(await sampler.score(longest), await engine.score(longest))
    await engine.close()


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.7])
async def test_logprobs_are_those_at_the_temperature(shared, sampler, temperature):
    sample = await sampler.sample(prompt(1), params(1, 24, temperature=temperature))
    assert sample.temperature == (temperature or 1.0)
    assert close(sample.logprobs, shared.logprobs(prompt(1).tokens, sample))
    if temperature == 0:
        engine = TINY.open_sampler(TINY.load(MODEL, 3), MODEL, shared.stops)
        own = await engine.sample(prompt(1), params(1, 24, temperature=0.0))
        await engine.close()
        assert own.tokens.tolist() == sample.tokens.tolist()


async def test_what_is_cut_is_not_drawn_and_the_rest_is_renormalised(shared, sampler):
    found = await asyncio.gather(*(sampler.sample(prompt(1), params(seed, 1, top_k=3)) for seed in range(30)))
    logprobs = {int(sample.tokens[0]): float(sample.logprobs[0]) for sample in found}
    assert len(logprobs) == 3
    assert np.exp(list(logprobs.values())).sum() == pytest.approx(1, abs=1e-4)
    [sample] = await asyncio.gather(sampler.sample(prompt(1), params(0, 24, top_p=0.001, min_p=0.9)))
    assert np.allclose(sample.logprobs, 0, atol=1e-4)


async def test_the_seed_decides_whichever_replica_is_asked_and_whatever_beside(shared, sampler):
    alone = [await shared.actors[0].sample.remote(prompt(n // 2), params(n), 0) for n in range(6)]
    beside = await asyncio.gather(*(shared.actors[1].sample.remote(prompt(n // 2), params(n), 0) for n in range(6)))
    for one, other in zip(alone, beside, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert close(one.logprobs, other.logprobs)
    assert len({tuple(one.tokens.tolist()) for one in alone}) == 6
    longer = await shared.actors[0].sample.remote(Prompt(np.concatenate([[30], prompt(0).tokens])), params(0), 0)
    assert longer.tokens.tolist() != alone[0].tokens.tolist()


CHOSEN = ((40, 41, 42, 43), (40, 41, 52, 53), (40, 41, 52, 54, 55), (60, 61), (60, 61, 62), (70, 71, 72, 73, 74))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
async def test_choices_are_drawn_with_what_was_allowed(shared, sampler, temperature):
    free = [sampler.sample(prompt(9), params(seed)) for seed in range(8)]  # others in the same steps
    asked = [
        sampler.sample(prompt(seed % 3), params(seed, 9, choices=CHOSEN, temperature=temperature)) for seed in range(24)
    ]
    *found, _ = await asyncio.gather(*asked, asyncio.gather(*free))
    engine = TINY.open_sampler(TINY.load(MODEL, 3), MODEL, shared.stops)
    whole = {tuple(choice) for choice in CHOSEN} | {(60, 61, stop) for stop in shared.stops}
    for seed, sample in enumerate(found):
        assert sample.stop is Stop.CHOICE
        assert tuple(sample.tokens.tolist()) in whole
        assert close(sample.logprobs, shared.logprobs(prompt(seed % 3).tokens, sample))
        own = [
            await engine.sample(prompt(seed % 3), params(other, 9, choices=CHOSEN, temperature=temperature))
            for other in range(20)
        ]
        alike = [one for one in own if one.tokens.tolist() == sample.tokens.tolist()]
        for one in alike[:1]:
            assert [ids.tolist() for ids in one.allowed] == [ids.tolist() for ids in sample.allowed]
            assert close(one.logprobs, sample.logprobs)
        assert alike or temperature
    await engine.close()
    if temperature:
        assert len({tuple(sample.tokens.tolist()) for sample in found}) > 2


async def test_one_choice_needs_no_model_and_a_cut_one_says_so(sampler):
    only = await sampler.sample(prompt(1), params(1, 9, choices=((40, 41),)))
    assert (only.tokens.tolist(), only.logprobs.tolist(), only.stop) == ([40, 41], [0.0, 0.0], Stop.CHOICE)
    cut = await sampler.sample(prompt(1), params(1, 2, choices=((40, 41, 42), (50, 51, 52))))
    assert (len(cut.tokens), cut.stop) == (2, Stop.LENGTH)
    full = TINY.max_context - 3
    last = await sampler.sample(prompt(1, full), params(1, 3, choices=((40, 41, 42), (40, 41, 43))))
    assert last.stop is Stop.CHOICE  # at the very end of a context


async def test_samples_end_with_their_stop_or_are_cut(shared, sampler):
    free = await sampler.sample(prompt(2), params(5, 40))
    assert (free.stop, len(free.tokens)) == (Stop.LENGTH, 40)
    wanted = int(free.tokens[7])
    first = free.tokens.tolist().index(wanted) + 1
    before = sum([(await actor.stats.remote()).sampled_tokens for actor in shared.actors])
    stopped = await sampler.sample(prompt(2), params(5, 350, stop_tokens=(wanted,)))
    assert stopped.stop is Stop.END
    assert stopped.tokens.tolist() == free.tokens.tolist()[:first]
    assert close(stopped.logprobs, free.logprobs[:first])
    text = shared.loaded.tokenizer.decode(free.tokens[10:13].tolist())
    by_text = await sampler.sample(prompt(2), params(5, 350, stop_strings=(text,)))
    await asyncio.sleep(0.5)
    drawn = sum([(await actor.stats.remote()).sampled_tokens for actor in shared.actors]) - before
    assert drawn < 200  # nothing is drawn in vain
    assert by_text.stop is Stop.END
    count = len(by_text.tokens)
    assert by_text.tokens.tolist() == free.tokens.tolist()[:count]
    assert text in shared.loaded.tokenizer.decode(by_text.tokens.tolist())
    assert text not in shared.loaded.tokenizer.decode(by_text.tokens.tolist()[:-1])
    whole = await sampler.sample(prompt(2, TINY.max_context - 1), params(5, 1))
    assert len(whole.tokens) == 1


async def test_what_cannot_be_sampled_is_refused_in_our_engines_words(sampler):
    with pytest.raises(BudgetError, match=r"^a prompt of 512 tokens and 16 to sample exceed the 512 of a context"):
        await sampler.sample(prompt(0, 512), params(0))
    with pytest.raises(ModelError, match=r"^a prompt has 1 images: expected text only"):
        await sampler.sample(Prompt(prompt(0).tokens, ("abc",)), params(0))
    with pytest.raises(ModelError, match=r"^token ids from 30 to 99999: expected 0 to"):
        await sampler.sample(Prompt(np.array([30, 99999])), params(0))
    with pytest.raises(ModelError, match=r"^sampling.temperature = 0.001: expected 0, or a number of at least 0.01"):
        await sampler.sample(prompt(0), params(0, temperature=0.001))
    assert all(replica.failures == 0 for replica in sampler.replicas)


async def test_a_prefix_is_computed_once(shared, sampler):
    before = await shared.actors[0].stats.remote()
    for _ in range(2):
        await shared.actors[0].sample.remote(prompt(77, 200), params(0), 0)
    reused = (await shared.actors[0].stats.remote()).reused_tokens - before.reused_tokens
    assert 160 <= reused < 200
    await shared.actors[0].forget.remote()
    await shared.actors[0].sample.remote(prompt(77, 200), params(0), 0)
    assert (await shared.actors[0].stats.remote()).reused_tokens - before.reused_tokens == reused


# -- new weights


@pytest.mark.parametrize("mode", MODES)
async def test_new_weights_answer_every_later_request_and_no_cached_token_is_of_the_old(shared, sampler, mode):
    set_mode(shared, mode)
    again = prompt(50, 300)
    weights = changed(shared.weights)
    for _ in range(2):
        old = await shared.actors[0].sample.remote(again, params(1, 32), 0)
    assert close(old.logprobs, shared.logprobs(again.tokens, old))
    await shared.actors[0].load.remote(shared.packed(weights), 1)
    new = await shared.actors[0].sample.remote(again, params(1, 32), 1)
    assert new.versions == (1, 1)
    assert close(new.logprobs, shared.logprobs(again.tokens, new, weights))
    assert not close(new.logprobs, shared.logprobs(again.tokens, new), OFF)
    scores = await shared.actors[0].score.remote(again, 1)
    engine = TINY.open_sampler(TINY.load(MODEL, 3), MODEL, shared.stops)
    await engine.publish(iter(weights.items()), 1)
    assert close(scores, await engine.score(again))
    await engine.close()


@pytest.mark.parametrize("mode", ["recompute", "keep"])
async def test_a_request_that_has_no_token_yet_begins_again_with_the_new_weights(shared, sampler, mode):
    """What it would read from the cache is of the old ones."""
    set_mode(shared, mode)
    weights, actor = changed(shared.weights), shared.actors[0]
    waiting = [prompt(60 + n, 200) for n in range(6)]
    await asyncio.gather(*(actor.sample.remote(one, params(1, 2), 0) for one in waiting))
    running = [actor.sample.remote(prompt(n, 64), params(n, 300), 0) for n in range(TINY.max_batch)]
    await begun(shared, TINY.max_batch)
    later = [actor.sample.remote(one, params(1, 24), 0) for one in waiting]
    scoring = [actor.score.remote(one, 0) for one in waiting[:2]]
    for _ in range(100):
        if await actor.__ray_call__.remote(lambda self: len(self._asked)) == TINY.max_batch + 8:
            break
    await actor.load.remote(shared.packed(weights), 1)
    for one, sample in zip(waiting, await asyncio.gather(*later), strict=True):
        assert sample.versions == (1, 1)
        assert close(sample.logprobs, shared.logprobs(one.tokens, sample, weights))
    assert {sample.versions for sample in await asyncio.gather(*running)} == {(0, 1)}
    for one, scores in zip(waiting, await asyncio.gather(*scoring), strict=False):
        assert close(scores, await actor.score.remote(one, 1))


async def test_a_replica_without_the_weights_that_are_asked_for_says_so(shared, sampler):
    for asked in (shared.actors[0].sample.remote(prompt(0), params(0), 1), shared.actors[0].score.remote(prompt(0), 1)):
        with pytest.raises(shared.ray.exceptions.RayTaskError) as caught:
            await asked
        assert isinstance(caught.value.cause, StaleWeightsError)


def record(self: Any) -> None:
    """Keeps what vLLM drew, token by token, in an actor."""
    kept, own = [], type(self)._drawn

    async def drawn(request: Any) -> Any:
        answer = await own(self, request)
        kept.append((request.prompt, answer))
        return answer

    self._drawn, self.kept = drawn, kept


def recorded(self: Any) -> Any:
    del self._drawn
    return self.kept


async def begun(shared: Shared, count: int) -> None:
    """Waits until the first replica has drawn a token of each of so many requests, or has them, where it does not look
    at tokens one by one."""
    for _ in range(600):
        if count <= await shared.actors[0].__ray_call__.remote(
            lambda self: sum(asked.begun or self._in_flight == "drain" for asked in self._asked.values())
        ):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("nothing is drawn")


@pytest.mark.parametrize("mode", MODES)
async def test_each_token_says_which_weights_drew_it(shared, sampler, mode):
    """Each span's log-probabilities are those of its own weights where the cache is computed anew, and not where it is
    kept."""
    set_mode(shared, mode)
    shared.in_actor(0, record)
    weights = changed(shared.weights)
    actor = shared.actors[0]
    running = [actor.sample.remote(prompt(n, 64), params(n, 400), 0) for n in range(6)]
    await begun(shared, 6)
    loading = actor.load.remote(shared.packed(weights), 1)
    later = [actor.sample.remote(prompt(n, 64), params(n, 24), 0) for n in range(6, 9)]
    await loading
    samples = await asyncio.gather(*running, *later)
    kept: list[tuple[IntArray, list[Drawn] | None]] = shared.in_actor(0, recorded)
    whole = [(tokens, drawn) for tokens, drawn in kept if drawn is not None]
    assert len(whole) == len(samples) == 9
    off, both = 0.0, 0
    for tokens, drawn in whole:
        versions = [one.version for one in drawn]
        assert versions == sorted(versions)
        assert set(versions) <= {0, 1}
        both += len(set(versions)) == 2
        [sample] = [one for one in samples if one.tokens.tolist() == [draw.token for draw in drawn]]
        assert sample.versions == (versions[0], versions[-1])
        by = np.array([shared.logprobs(tokens, sample), shared.logprobs(tokens, sample, weights)])
        own = by[np.array(versions), np.arange(len(versions))]
        found = np.array([one.logprob for one in drawn])
        assert np.array_equal(found.astype(np.float32), sample.logprobs)
        off = max(off, float(np.abs(found - own).max()))
    assert (both > 0) == (mode != "drain")
    assert (off > OFF) if mode == "keep" else (off < EXACT)


@pytest.mark.parametrize("mode", MODES)
async def test_publishing_loses_no_request(shared, sampler, mode):
    set_mode(shared, mode)
    running = asyncio.ensure_future(sampled(sampler, 24, 64))
    scoring = asyncio.gather(*(sampler.score(prompt(n, 300)) for n in range(6)))
    await a_moment()
    assert all(replica.running for replica in sampler.replicas)
    for version in (1, 2, 3):
        await asyncio.sleep(0.2)
        await sampler.publish(shared.packed(changed(shared.weights, version / 50)), version)
    samples = await running
    assert [len(sample.tokens) == 64 or sample.stop is Stop.END for sample in samples] == [True] * 24
    assert all(0 <= sample.versions.oldest <= sample.versions.newest <= 3 for sample in samples)
    assert all(len(scores) == 299 for scores in await scoring)
    assert (await sampler.sample(prompt(0), params(0))).versions == (3, 3)
    assert all(replica.failures == 0 for replica in sampler.replicas)


async def test_a_cancelled_request_is_not_computed_further(shared, sampler):
    running = asyncio.gather(*(sampler.sample(prompt(n, 8), params(n, 500)) for n in range(16)), return_exceptions=True)
    await begun(shared, 4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0.5)
    before = [(await actor.stats.remote()).rows for actor in shared.actors]
    await asyncio.sleep(0.5)
    assert before == [(await actor.stats.remote()).rows for actor in shared.actors]
    assert not shared.in_actor(0, lambda self: self._asked)


# -- what ends


def descendants(process: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def engine_of(process: int) -> int:
    """Returns the process of vLLM's engine, which the actor's process has started."""
    [found] = [one for one in descendants(process) if b"EngineCore" in Path(f"/proc/{one}/cmdline").read_bytes()]
    return found


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("what", ["engine", "actor"])
async def test_what_is_killed_comes_back_with_the_newest_weights_and_changes_no_token(cluster, shared, sampler, what):
    weights = changed(shared.weights)
    await sampler.publish(shared.packed(weights), 1)
    await until(lambda: all(replica.version == 1 for replica in sampler.replicas))
    expected = await sampled(sampler, 12, 64)
    victim, process = sampler.replicas[0], pid(cluster, shared.actors[0])
    below = descendants(process)
    running = asyncio.ensure_future(sampled(sampler, 12, 64))
    await begun(shared, 1)
    os.kill(engine_of(process) if what == "engine" else process, signal.SIGKILL)
    for one, other in zip(await running, expected, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.versions == (1, 1)
    await until(lambda: not any(map(alive, [process, *below])))
    await until(lambda: victim.version == 1, 120)
    assert victim.failures == 1
    after = await asyncio.gather(*(victim.actor.sample.remote(prompt(n), params(n, 32), 1) for n in range(3)))
    for number, sample in enumerate(after):
        assert sample.versions == (1, 1)
        assert close(sample.logprobs, shared.logprobs(prompt(number).tokens, sample, weights))


async def test_a_model_that_vllm_cannot_load_is_told_in_one_sentence(cluster, shared):
    made = ENGINES["vllm"].actor(TINY.samplers)
    needs = replace(TINY.needs["samplers"], count=1)
    without_room = replace(TINY, memory_gb=1e-6)
    actor = shared.cluster.actor(made.kind, needs, -1, without_room, MODEL, 3, shared.stops, *made.arguments)
    process = pid(cluster, actor)
    with pytest.raises(InfrastructureError, match=r"^vLLM did not start with model 'tiny:layers=2,hidden=64' \("):
        answers({"sampler 0": actor.open.remote()})
    below = descendants(process)
    cluster.kill(actor)
    await until(lambda: not any(map(alive, [process, *below])))


RECIPE = """
name = "scaled"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
env = { name = "toy", rooms = 2, side_rooms = 0, doors = 0, decoys = 0, choices = true }
agent = { name = "plain", choices = true }
backend = { name = "ray", max_context = 1024, memory_gb = 0.05, samplers = { engine = "vllm", cpus = 0.5 } }
evaluation = { tasks = 4 }
[[stages]]
name = "rl"
steps = 2
groups = { name = "slots", width = 2, size = 4 }
estimator = { name = "reinforce", baseline = "none" }
losses = [{ name = "ppo" }]
optim = { lr = 1e-2 }
"""


def command(folder: Path, own: str, *overrides: str) -> subprocess.Popen:
    (folder / "recipe.toml").write_text(RECIPE)
    environment = {**os.environ, "RAY_TMPDIR": own, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    run = ["train", str(folder / "recipe.toml"), "--out", str(folder / "run"), *overrides]
    return subprocess.Popen(
        [sys.executable, "-m", "sojourn", *run], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )


def shared_memory() -> set[str]:
    return {entry.name for entry in Path("/dev/shm").iterdir()}


def steps_of(folder: Path) -> list[dict[str, float]]:
    path = folder / "run" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_recipe_trains_on_policy_and_leaves_nothing(tmp_path):
    before, own = shared_memory(), tempfile.mkdtemp(dir="/tmp")  # Ray's sockets need a short path
    with command(tmp_path, own) as driver:
        said, _ = driver.communicate(timeout=400)
    assert driver.returncode == 0, said.decode()
    divergences = [step["kl"] for step in steps_of(tmp_path) if "kl" in step]
    assert len(divergences) == 2
    assert max(divergences) < EXACT**2  # of the sampler from the trainer: after an update, too
    wait_for_their_end(own)
    assert shared_memory() <= before


def test_a_driver_that_is_killed_leaves_nothing(tmp_path):
    before, own = shared_memory(), tempfile.mkdtemp(dir="/tmp")
    with command(tmp_path, own, "stages.rl.steps=2000") as driver:
        deadline = time.monotonic() + 300
        while not steps_of(tmp_path):
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert any(b"EngineCore" in Path(f"/proc/{one}/cmdline").read_bytes() for one in processes_of(own))
        driver.kill()
    wait_for_their_end(own)
    assert shared_memory() <= before
