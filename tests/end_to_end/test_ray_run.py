"""Whole runs on Ray: the same run as in one process, whichever of its processes are killed on the way."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed_actors import actors_of, killing
from trained_run import final_weights

import sojourn
from sojourn.abilities import PartState
from sojourn.commands.train import run_to_end
from sojourn.config import toml
from sojourn.display import Display
from sojourn.errors import RankError
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.parts import PARTS, read
from sojourn.record.run import RunFolder
from sojourn.train.resolve import resolve
from sojourn.types import Episode

RECIPE = """
name = "ray"
seed = 4
[model]
name = "tiny:layers=1,hidden=64"
dtype = "fp32"
[backend]
name = "torch"
threads = 1
max_context = 1024
memory_gb = 0.05
[env]
name = "toy"
rooms = 2
[sampling]
max_tokens = 6
[rollout.limits]
turns = 4
[evaluation]
tasks = 4
[record]
checkpoint_every = 1
[[stages]]
name = "warmup"
steps = 2
groups = { name = "experts", width = 4, distinct_tasks = 8, success_only = false }
estimator = { name = "constant" }
losses = [{ name = "nll" }]
optim = { lr = 1e-3 }
[[stages]]
name = "rl"
steps = 4
groups = { name = "slots", width = 2, size = 4 }
estimator = { name = "reinforce", baseline = "none" }
losses = [{ name = "ppo" }, { name = "kl" }]
streams = [{ name = "ref_logprobs" }]
optim = { lr = 1e-3 }
[reward]
name = "native"
malformed = -0.5
"""
CPUS = ("backend.samplers.cpus=0.5", "backend.trainer.cpus=0.5")
RAY = ("backend.name=ray", *CPUS, "backend.samplers.replicas=2", "backend.envs={workers=2,cpus=0.5}")
FEW = ("backend.name=ray", *CPUS, "backend.envs={workers=1,cpus=0.5}")  # where a test is of ranks alone
TWO_RANKS = "backend.trainer.ranks=2"


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    """One Ray for all runs, which join it."""
    pytest.importorskip("ray")
    from ray_actors import started

    with started(4) as ray:
        yield ray


async def train(folder: Path, *overrides: str) -> Path:
    path = folder.with_suffix(".toml")
    path.write_text(RECIPE)
    resolved = resolve(toml.read(path, overrides))
    with RunFolder.create(folder, toml.dump(resolved.table)) as run, Display(live=False) as display:
        await run_to_end(resolved.recipe, run, display)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """The run in one process."""
    return asyncio.run(train(tmp_path_factory.mktemp("plain") / "run"))


def played(folder: Path) -> list[list[list[int]]]:
    """Returns the sampled tokens of every episode that was trained by RL, by group."""
    with EpisodeStore(folder) as store:
        return [[_tokens(episode) for episode in group.episodes] for group in store.groups("rl")]


def _tokens(episode: Episode) -> list[int]:
    return [int(t) for trajectory in episode.trajectories for turn in trajectory.turns for t in turn.sample.tokens]


def assert_same(one: Path, other: Path) -> None:
    assert played(one) == played(other)
    first, second = final_weights(one), final_weights(other)
    assert first.keys() == second.keys()
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name], err_msg=name)


async def test_a_run_on_ray_is_the_run_in_one_process_bit_for_bit_and_leaves_no_process(ray, plain, tmp_path):
    free = ray.available_resources()["CPU"]
    found = await train(tmp_path / "run", *RAY)
    assert_same(found, plain)
    assert_parts_are_recorded(found)
    for kind in ("SamplerActor", "EnvWorker", "TrainerRank"):
        for _ in range(100):
            if not actors_of(kind):
                break
            await asyncio.sleep(0.1)
        assert not actors_of(kind)
    assert ray.available_resources()["CPU"] == free


def assert_parts_are_recorded(run: Path) -> None:
    """Each step says what every part did."""
    readings = list(read(run / PARTS))
    assert [(reading.stage, reading.step) for reading in readings] == [("warmup", 0), ("warmup", 1)] + [
        ("rl", step) for step in range(4)
    ]
    names = ["driver", "trainer rank 0", "sampler 0", "sampler 1", "worker 0", "worker 1"]
    for reading in readings:
        assert [part.name for part in reading.parts] == names
        assert {part.state for part in reading.parts} == {PartState.UP}
    numbers = {part.name: part.numbers for part in readings[-1].parts}
    assert len({part.facts["process"] for part in readings[-1].parts[1:]}) == 5
    assert numbers["trainer rank 0"]["passes"] == 1
    assert sum(numbers[f"worker {n}"]["plays_begun"] for n in range(2)) >= 8
    assert all(numbers[name]["busy_share"] > 0 for name in names)
    assert all(numbers[f"sampler {n}"]["weights_version"] == 6 for n in range(2))


async def test_a_world_measures_the_policy_though_its_plays_are_elsewhere(tmp_path):
    world = ["env={name='measured_world:Picks'}", "agent.choices=true", "sampling.max_tokens=16"]
    steps = ["stages.0.steps=1", "stages.1.steps=1"]
    ours, theirs = [await train(tmp_path / str(len(on)), *world, *steps, *on) for on in (RAY, ())]
    told = [[one["summary"]["measures"] for one in RunFolder.read(run).evaluations()] for run in (ours, theirs)]
    assert told[0] == told[1]
    assert len(told[0]) == 3
    assert all(told[0])


@pytest.mark.parametrize("further", [(), ("backend.trainer.context_parallel=2",)], ids=["each", "shared"])
async def test_two_ranks_train_the_same_to_the_last_digits(plain, further, tmp_path):
    found = final_weights(await train(tmp_path / "run", *FEW, TWO_RANKS, *further))
    for name, values in final_weights(plain).items():
        np.testing.assert_allclose(values, found[name], atol=2e-4, err_msg=name)


def test_a_run_moves_to_ray_and_goes_on_bit_for_bit(plain, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RECIPE)
    begun = sojourn.train(path, out=tmp_path / "run", progress=False, **{"stages.rl.steps": 2}).path
    moved = {
        "backend.name": "ray",
        "backend.samplers": {"replicas": 2, "cpus": 0.5},
        "backend.trainer.cpus": 0.5,
        "stages.rl.steps": 4,
    }
    assert_same(sojourn.train(begun, resume=True, progress=False, **moved).path, plain)


async def test_killed_samplers_and_workers_change_nothing(plain, tmp_path):
    async with killing(["SamplerActor", "EnvWorker"], 0, times=4) as killed:
        found = await train(tmp_path / "run", *RAY)
    assert killed
    assert_same(found, plain)
    with EpisodeStore(found) as store:
        assert not [row.id for row in store.query() if row.error], "what was lost was played again"


async def test_a_killed_rank_sends_the_run_back_to_its_last_checkpoint(plain, tmp_path):
    async with killing(["TrainerRank"], 0, times=2) as killed:
        found = await train(tmp_path / "run", *RAY)
    assert killed == ["TrainerRank"] * 2
    assert_same(found, plain)


async def test_a_rank_that_is_lost_again_and_again_ends_the_run_in_one_sentence(tmp_path):
    async with killing(["TrainerRank"], 0, times=2):
        with pytest.raises(RankError, match=r"^trainer rank 0 of 1 \(process \d+ on .*\) died: `sojourn train "):
            await train(tmp_path / "run", *FEW, "backend.trainer.restarts=1")
