"""A planner and an executor that work out each action together, trained side by side."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import trained_run
from safetensors.numpy import load_file
from trained_run import killed_and_resumed
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.errors import ConfigError
from sojourn.record import checkpoint, metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.replay import Verdict, replay

RECIPE = """
name = "workflow"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
env = { name = "toy", rooms = 3, side_rooms = 1, doors = 0, choices = true }
evaluation = { tasks = 4 }
sampling = { max_tokens = 12 }
rollout = { limits = { turns = 12 } }
models = { small = { name = "tiny:layers=1,hidden=64", dtype = "fp32" } }
record = { checkpoint_every = 1, keep = 9 }

[agent]
name = "workflow"
order = ["planner", "executor"]

[agent.roles.planner]
instruction = "Say which way to go."
every = 2
model = "small"
says = ["north", "south", "take it"]
base = { name = "plain", choices = true }

[agent.roles.executor]
instruction = "Follow the plan."
sees = ["world", "planner"]
base = { name = "plain", choices = true }

[[stages]]
name = "rl"
steps = 2
groups = { name = "slots", width = 4, size = 4 }
estimator = { name = "mgrpo" }
losses = [{ name = "ppo" }]
aggregate = { by = "seat" }
optim = { lr = 1e-3 }
learners = { small = { optim = { lr = 1e-3 } } }
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run.train(tmp_path_factory.mktemp("workflow") / "run", recipe=RECIPE)


def test_each_model_learns_from_what_its_role_said(run: Path) -> None:
    for line in metrics.read(run / "metrics.jsonl"):
        assert line.values["grad_norm"] > 0
        assert line.values["small_grad_norm"] > 0
    with EpisodeStore(run) as store:
        played = [episode for group in store.groups("rl") for episode in group.episodes]
    assert {(t.agent, t.model) for e in played for t in e.trajectories} == {("agent", "policy"), ("planner", "small")}
    assert all(t.reward == e.trajectories[0].reward for e in played for t in e.trajectories)
    said = {turn.message.text for e in played for t in e.trajectories[1:] for turn in t.turns if turn.message}
    assert said == {"north", "south", "take it"}


def test_a_resumed_run_is_the_same(run: Path, tmp_path: Path) -> None:
    resumed = killed_and_resumed(tmp_path / "resumed", recipe=RECIPE)
    for model in ("", "models/small"):
        weights = [checkpoint.checkpoints(path / "checkpoints")[-1].weights for path in (run, resumed)]
        first, second = (load_file(one / model / "weights.safetensors") for one in weights)
        assert all(np.array_equal(values, second[name]) for name, values in first.items())


async def replayed(path: Path) -> set[Verdict]:
    with EpisodeStore(path) as store:
        rows = [row for row in store.query(limit=99) if row.stage == "rl"]
        found = [one async for one in replay(RunFolder.read(path), [(row, store.read(row)) for row in rows])]
    return {one.verdict for one in found}


def test_its_episodes_replay_and_are_shown(run: Path) -> None:
    assert asyncio.run(replayed(run)) == {Verdict.SAME}
    with EpisodeStore(run) as store:
        episode = next(episode for group in store.groups("rl") for episode in group.episodes)
    shown = CliRunner().invoke(app, ["show", str(run), episode.id]).output
    assert shown.index("planner, turn 1") < shown.index("agent, turn 1")


CLONES = ("stages.0.estimator={name='constant'}", "stages.0.losses=[{name='nll'}]", "stages.0.learners={}")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("models={}", "stages.0.learners={}"), "agent: the model 'small' is to act for it, but there are policy"),
        (("stages.0.groups.branching={name='uniform'}",), "groups.branching forks plays of Workflow"),
        (
            ("stages.0.groups={name='experts', width=2}", *CLONES),
            "the first turn of Workflow is no action of the world",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        trained_run.train(tmp_path / "run", *overrides, recipe=RECIPE)
