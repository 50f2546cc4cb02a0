"""Snapshots of a policy that trains adapters are sampled by its own engine, each by its own weights."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trained_run
from trained_run import final_weights, killed_and_resumed

import sojourn
from sojourn.backends.torch.backend import Torch
from sojourn.backends.torch.models import export
from sojourn.backends.torch.sampler.engine import Engine
from sojourn.models.spec import Lora, Model
from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import Prompt, Trajectory

LORA = Lora(rank=4, alpha=8.0)
MODEL = Model(name="tiny:layers=1,hidden=64", dtype="fp32", lora=LORA)
RECIPE = f"""
name = "past"
model = {{ name = "{MODEL.name}", dtype = "fp32", lora = {{ rank = 4, alpha = 8.0 }} }}
backend = {{ name = "torch", threads = 1 }}
env = {{ name = "matrix", opponent = "self", rounds = 3 }}
evaluation = {{ tasks = 4 }}
sampling = {{ max_tokens = 8 }}
rollout = {{ limits = {{ turns = 12 }} }}
models = {{ past = {{ snapshots = {{ every = 1, choose = "latest" }} }} }}
seats = {{ opponents = ["past"] }}
record = {{ checkpoint_every = 1 }}
[[stages]]
name = "rl"
steps = 3
groups = {{ name = "slots", width = 8, size = 2 }}
estimator = {{ name = "constant" }}
losses = [{{ name = "nll" }}]
optim = {{ lr = 0.05 }}
"""


def trajectories_of(path: Path) -> list[Trajectory]:
    with EpisodeStore(path) as store:
        groups = sorted(store.groups("rl"), key=lambda group: group.slot)
    return [one for group in groups for episode in group.episodes for one in episode.trajectories if one.turns]


@pytest.fixture(scope="module")
def opened():
    return list[Engine]()


@pytest.fixture(scope="module")
def run(tmp_path_factory, opened):
    with pytest.MonkeyPatch.context() as patch:
        open_one = Torch.open_sampler
        patch.setattr(Torch, "open_sampler", lambda *args: opened.append(open_one(*args)) or opened[-1])
        return trained_run.train(tmp_path_factory.mktemp("past") / "run", recipe=RECIPE)


def test_one_engine_samples_the_policy_and_all_its_snapshots(run, opened):
    assert len(opened) == 1
    assert {one.model for one in trajectories_of(run)} == {"policy", "past@0", "past@1", "past@2"}


def newest(one: Trajectory) -> int:
    return one.turns[0].sample.versions.newest


async def gaps(folder: Path, played: list[Trajectory]) -> list[float]:
    """Returns how far the log-probabilities by these weights, merged, are from those that were recorded."""
    torch = Torch(threads=1)
    loaded = torch.load(MODEL, 0)
    model = export.with_weights(loaded.model, LORA, folder).merge_and_unload()
    sampler, found = torch.open_sampler(replace(loaded, model=model), MODEL, ()), list[float]()
    for one in played:
        prompt, turn = one.prompt(0), one.turns[0]
        known = await sampler.score(Prompt(np.concatenate([prompt, turn.sample.tokens])))
        found.append(float(np.abs(known[len(prompt) - 1 :] - turn.sample.logprobs).max()))
    await sampler.close()
    return found


def test_each_samples_by_its_own_weights(run):
    played = trajectories_of(run)
    versions = sorted({newest(one) for one in played if one.model == "policy"})
    assert len(versions) == 3
    for step in range(3):
        snapshot = run / "snapshots" / "past" / f"step-{step:06d}"
        own = [one for one in played if one.model == f"past@{step}"]
        others = [one for one in played if one.model not in ("policy", f"past@{step}")]
        assert max(asyncio.run(gaps(snapshot, own))) < 1e-4
        assert min(asyncio.run(gaps(snapshot, others))) > 1e-4
        mine = [one for one in played if one.model == "policy" and newest(one) == versions[step]]
        assert max(asyncio.run(gaps(snapshot, mine))) < 1e-4, "they are the policy's weights then"


def test_an_evaluation_samples_them_by_the_weights_that_it_loads(run):
    with sojourn.load(f"{run}@last") as loaded:
        played = [one for task in range(8) for one in loaded.play(task).trajectories if one.turns]
    assert {one.model for one in played} == {"policy", "past@3"}
    assert max(asyncio.run(gaps(run / "snapshots" / "past" / "step-000003", played))) < 1e-4


def test_a_killed_run_goes_on_to_the_same_weights(run, tmp_path):
    path = killed_and_resumed(tmp_path / "killed", recipe=RECIPE)
    assert [one.model for one in trajectories_of(path)] == [one.model for one in trajectories_of(run)]
    found = final_weights(path)
    for name, values in final_weights(run).items():
        np.testing.assert_array_equal(values, found[name])
