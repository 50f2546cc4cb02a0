"""Tasks that worlds make for a curriculum, and runs that play them."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trained_run
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.config import toml
from sojourn.curricula.proposers.edits import Edits
from sojourn.curricula.task_history import TaskHistory
from sojourn.display import Display
from sojourn.envs.mixed import Mixed
from sojourn.envs.toy import Toy
from sojourn.record import checkpoint, metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe
from sojourn.types import Message, Role, Task
from sojourn_worlds.blackjack import Blackjack
from sojourn_worlds.colorgrid import ColorGrid
from sojourn_worlds.sokoban import Sokoban


def walked(world: Any, like: Task, count: int) -> list[Task]:
    """Tasks on a random walk of edits from one."""
    rng, found, edits = np.random.default_rng(0), [like], Edits(edits=3)
    for _ in range(count):
        task = edits.propose(TaskHistory([found[-1]], 1), 0, world, rng)
        found += [] if task is None else [task]
    return found[1:]


async def solved(world: Any, task: Task) -> bool:
    play, success = world.make(task), None
    await play.start()
    while success is None:
        success = (await play.step("agent", Message(Role.ASSISTANT, play.expert()))).success
    return success


@pytest.mark.parametrize("world", [Toy(turns=30), Sokoban(size=6), ColorGrid()], ids=["toy", "sokoban", "colorgrid"])
async def test_tasks_that_a_world_makes_can_be_solved_and_are_training_tasks(world: Any):
    like = world.tasks("train")[0]
    tasks = walked(world, like, 40)
    assert len({tuple(task.data.values()) for task in tasks}) > 10
    assert {(task.env, task.split) for task in tasks} == {(like.env, "train")}
    assert all([await solved(world, task) for task in tasks[::3]])


async def test_the_toy_makes_no_task_that_its_turns_do_not_allow():
    toy = Toy(turns=8)
    like, made = toy.tasks("train")[0], []
    for seed in range(40):
        data = {**like.data, "rooms": 4}
        task = toy.make_task(like, data, seed)
        assert (task is not None) == await solved(toy, Task("toy", data, seed, "train"))
        made += [task] * (task is not None)
    assert 0 < len(made) < 40
    assert toy.make_task(like, {**like.data, "doors": 3}, 0) is None  # of three rooms


def test_a_mixture_makes_tasks_of_the_world_and_the_level_of_their_parents():
    mixed = Mixed(worlds=(Toy(), Toy(rooms=5), Blackjack()), levels=True)
    for like in mixed.tasks("train")[:2]:
        assert mixed.bounds(like) == Toy().bounds(like)
        task = mixed.make_task(like, {**like.data, "rooms": 4}, 9)
        assert task is not None
        assert task.tags == like.tags[-1:]
        assert mixed.world_of(task) == mixed.world_of(like)
    assert mixed.bounds(mixed.tasks("train")[2]) == {}
    flat = Mixed(worlds=(Toy(), Sokoban()))
    tasks = flat.tasks("train")
    assert [flat.make_task(task, task.data, 5) for task in tasks[:2]] == [replace(task, seed=5) for task in tasks[:2]]


def test_a_task_that_a_run_made_is_recorded_shown_and_played_again(tmp_path: Path):
    made = (
        "curriculum={ name = 'accel', start = 2, new = 1.0, made = 1.0, base = { name = 'learnability' } }",
        "stages.rl.steps=3",
        "stages.rl.groups.width=2",
        "env.choices=false",
        "agent.choices=false",
    )
    run = trained_run.train(tmp_path / "run", *made)
    with EpisodeStore(run) as store:
        rows = [row for row in store.query(stage="rl") if "made" in row.tags]
        assert rows
        recorded = store.read(rows[0])
    task = recorded.episode.task
    assert task.split == "train"
    listed = Toy(rooms=2).tasks("train")
    assert task.id not in {listed[index].id for index in range(1000)}
    (turn, *_) = recorded.episode.trajectories[0].turns
    start = asyncio.run(Toy().make(task).start())
    assert turn.observed[-1] == start.messages[-1]
    for command, words in (
        (["show", str(run), "--find", "tag:made"], rows[0].id),
        (["play", str(run), "--task", task.id, "--expert"], start.messages[0].text[:12]),
        (["show", str(run)], "made"),
    ):
        done = CliRunner().invoke(app, command, env={"COLUMNS": "160"})
        assert done.exit_code == 0, done.output
        assert words in done.output
    last = list(metrics.read(run / "metrics.jsonl"))[-1].values
    assert last["drawn_edits"] > 0
    assert last["observed_made"] > 0


GENERATIONS = """
[[stages]]
name = "last_plays"
steps = 1
trains = false
groups = { name = "slots", width = 2, size = 2 }
[[stages]]
name = "distil"
steps = 1
restart = true
groups = { name = "earlier", stage = "last_plays", width = 2 }
estimator = { name = "constant" }
losses = [{ name = "nll" }]
[[repeats]]
stages = ["rl", "last_plays", "distil"]
rounds = 2
"""


def test_the_population_goes_on_through_generations(tmp_path: Path):
    run = trained_run.train(
        tmp_path / "run",
        "curriculum={ name = 'accel', start = 2, new = 1.0, made = 1.0 }",
        "stages.rl.groups.width=2",
        recipe=trained_run.RECIPE + GENERATIONS,
    )
    found = {line.stage: line.values for line in metrics.read(run / "metrics.jsonl")}
    assert found["rl_2"]["population"] > found["rl"]["population"] > 2
    assert found["rl_2"]["drawn_edits"] >= 1
    assert {"rl", "rl_2"} <= {each["name"] for each in RunFolder.read(run).evaluations()}


MORE = """
[[stages]]
name = "more"
steps = 2
groups = { name = "slots", width = 2, size = 2 }
losses = [{ name = "ppo" }]
"""


def test_a_run_that_is_resumed_makes_the_same_tasks(tmp_path: Path):
    run = trained_run.train(
        tmp_path / "run",
        "curriculum={ name = 'accel', start = 2, new = 1.0, made = 1.0 }",
        "stages.rl.groups.width=2",
        "stages.rl.steps=2",
        recipe=trained_run.RECIPE + MORE,
    )
    whole = seen(run)
    assert len({task for task, tags in whole if "made" in tags}) > 2
    shutil.rmtree(checkpoint.checkpoints(run / "checkpoints")[-1].path)
    with RunFolder.open(run) as folder:
        folder.write_json("evaluations.json", folder.evaluations()[:-1])
    resolved = resolve(toml.read(run))
    with RunFolder.open(run) as folder, Display(live=False) as display:
        asyncio.run(run_recipe(resolved.recipe, folder, display, resume=True))
    assert seen(run) == whole


def seen(run: Path) -> list[tuple[str, tuple[str, ...]]]:
    """The tasks of the groups that were played, with their tags, and what was told of the population by step."""
    with EpisodeStore(run) as store:
        groups = [group for stage in ("rl", "more") for group in store.groups(stage)]
        tasks = [(group.task.id, group.task.tags) for group in groups]
    names = ("drawn_edits", "drawn_rooms", "population", "tasks_made", "loss")
    lines = [line.values for line in metrics.read(run / "metrics.jsonl") if line.stage in ("rl", "more")]
    return [*tasks, *((str([line[name] for name in names]), ()) for line in lines)]
