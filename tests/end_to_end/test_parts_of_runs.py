"""Every step of a run records what the parts of the run do, also where it is resumed, and where it fails."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import sojourn
from sojourn.abilities import PartLoad, PartState
from sojourn.config import toml
from sojourn.display import Display
from sojourn.record import metrics
from sojourn.record.parts import PARTS, Reading, read
from sojourn.record.run import RunFolder
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe

RECIPE = """
name = "parts"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1, memory_gb = 0.05 }
env = { name = "toy", rooms = 2 }
sampling = { max_tokens = 4 }
rollout = { limits = { turns = 2 } }
evaluation = { tasks = 2 }
record = { checkpoint_every = 1 }
[[stages]]
name = "warmup"
steps = 1
groups = { name = "experts", width = 2, distinct_tasks = 2, success_only = false }
estimator = { name = "constant" }
losses = [{ name = "nll" }]
[[stages]]
name = "rl"
steps = 3
groups = { name = "slots", width = 2, size = 2, max_lag = 1 }
losses = [{ name = "ppo" }]
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    recipe = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    recipe.write_text(RECIPE)
    return sojourn.train(recipe, out=recipe.with_name("run"), progress=False).path


def steps(readings: list[Reading]) -> list[tuple[str, int]]:
    return [(reading.stage, reading.step) for reading in readings]


def test_a_run_in_one_process_records_its_driver_engine_and_trainer(trained):
    readings = list(read(trained / PARTS))
    assert steps(readings) == [("warmup", 0), ("rl", 0), ("rl", 1), ("rl", 2)]
    for reading in readings:
        assert [part.name for part in reading.parts] == ["driver", "trainer", "sampler"]
        assert all(part.state is PartState.UP for part in reading.parts)
    driver, trainer, sampler = readings[2].parts
    assert 0 < driver.numbers["busy_share"] <= 1
    assert driver.numbers["plays_mean"] > 0
    assert driver.numbers["memory_bytes"] > 1 << 26
    assert driver.numbers["groups_playing"] + driver.numbers["groups_complete"] == 2, "those of the next step"
    assert trainer.numbers["passes"] == 1
    assert sampler.numbers["busy_share"] > 0
    assert sampler.numbers["weights_version"] == 3


def test_a_resumed_run_goes_on_with_its_record(trained, tmp_path):
    path = tmp_path / "run"
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    begun = sojourn.train(recipe, out=path, progress=False, **{"stages.rl.steps": 2}).path
    text = (path / PARTS).read_text()
    (path / PARTS).write_text(text + text.splitlines()[-1].replace('"step": 1', '"step": 2') + "\n")
    sojourn.train(begun, resume=True, progress=False, **{"stages.rl.steps": 3})
    readings = list(read(path / PARTS))
    assert steps(readings) == steps(list(read(trained / PARTS))), "what was after the checkpoint is gone"
    assert (path / PARTS).read_text().startswith(text)
    assert [line.step for line in metrics.read(path / "metrics.jsonl")] == [reading.step for reading in readings]


class Hanging:
    """A world whose parts never answer, and which breaks where it is told to."""

    def __init__(self, world: Any) -> None:
        self.world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    async def part_loads(self) -> list[PartLoad]:
        await asyncio.Event().wait()
        return []


async def test_a_world_whose_parts_hang_holds_no_step_up(tmp_path, monkeypatch):
    from dataclasses import replace

    from sojourn.record import part_recorder

    monkeypatch.setattr(part_recorder, "GIVEN_UP_S", 0.1)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    resolved = resolve(toml.read(tmp_path / "recipe.toml"))
    recipe = replace(resolved.recipe, env=Hanging(resolved.recipe.env))  # type: ignore[arg-type]
    with RunFolder.create(tmp_path / "run", toml.dump(resolved.table)) as run, Display(live=False) as display:
        await run_recipe(recipe, run, display)
    assert len(list(metrics.read(tmp_path / "run" / "metrics.jsonl"))) == 4
    readings = list(read(tmp_path / "run" / PARTS))
    assert readings[-1].step == 2
    for reading in readings:
        assert [part.state.value for part in reading.parts] == ["up", "up", "up", "silent"]
        assert reading.parts[3].name == "Hanging"
