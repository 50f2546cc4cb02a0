"""A main agent and its sub-agents, trained together by M-GRPO: one model for all, or a learner for each."""

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
from sojourn.config import toml
from sojourn.credit.papers.mgrpo import MGRPO
from sojourn.errors import ConfigError
from sojourn.record import checkpoint, metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.replay import Verdict, replay
from sojourn.rewards.native import Native
from sojourn.train.resolve import resolve

RECIPE = """
name = "together"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
env = { name = "toy", rooms = 2, side_rooms = 0, doors = 0, choices = true }
evaluation = { tasks = 4 }
sampling = { max_tokens = 12 }
rollout = { limits = { turns = 10 } }
models = { small = { name = "tiny:layers=1,hidden=64", dtype = "fp32" } }
record = { checkpoint_every = 1, keep = 9 }

[agent]
name = "delegating"
rewards = "main"
base = { name = "plain", choices = true }

[agent.sub_agents.walker]
instruction = "Do one thing."
model = "small"
world = "acts"
turns = 2
tasks = ["go on"]
results = ["done"]
base = { name = "plain", choices = true }

[agent.sub_agents.thinker]
instruction = "Say where to go."
tasks = ["where"]
results = ["north", "south"]
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
ONE = ("agent.sub_agents.walker.model='policy'", "models={}", "stages.0.learners={}")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained_run.train(tmp_path_factory.mktemp("together") / "run", recipe=RECIPE)


def episodes(path):
    with EpisodeStore(path) as store:
        return [episode for group in store.groups("rl") for episode in group.episodes]


def test_both_models_learn_from_their_own_calls(run):
    for line in metrics.read(run / "metrics.jsonl"):
        assert line.values["grad_norm"] > 0
        assert line.values["small_grad_norm"] > 0
    models = {(t.agent, t.model) for e in episodes(run) for t in e.trajectories}
    assert models == {("agent", "policy"), ("walker", "small"), ("thinker", "policy")}
    assert any(sum(t.agent == "walker" for t in e.trajectories) > 1 for e in episodes(run))


def test_every_token_is_recorded_with_the_credit_of_its_call(run):
    """M-GRPO over whole episodes, worked out from the record, is what each learner trained on."""
    with EpisodeStore(run) as store:
        recorded = list(store.records("rl", [0]))
    for one in recorded:
        scores = asyncio.run(Native()(one.group))
        [expected] = MGRPO()([one.group], [scores], {})
        for credit, same, t in zip(one.credits, expected, one.group.trajectories, strict=True):
            assert [len(tokens) for tokens in credit.tokens] == [len(turn.sample.tokens) for turn in t.turns]
            np.testing.assert_allclose(np.concatenate(credit.tokens), np.concatenate(same.tokens), atol=1e-6)
    pairs = [pair for one in recorded for pair in zip(one.credits, one.group.trajectories, strict=True)]
    returns = [t.reward for _, t in pairs if t.agent == "walker"]
    credits = [float(credit.tokens[0][0]) for credit, t in pairs if t.agent == "walker"]
    assert set(returns) == {0.0}, "the main agent has the rewards"
    assert any(credits), "which the calls of its sub-agent share"


def weights_of(run: Path) -> Path:
    return checkpoint.checkpoints(run / "checkpoints")[-1].weights


def test_a_resumed_run_is_the_same(run, tmp_path):
    resumed = killed_and_resumed(tmp_path / "resumed", recipe=RECIPE)
    for model in ("", "models/small"):
        first, second = (load_file(weights_of(path) / model / "weights.safetensors") for path in (run, resumed))
        assert all(np.array_equal(values, second[name]) for name, values in first.items())


def test_an_evaluation_is_of_the_main_agent(run):
    summary = RunFolder.read(run).evaluations()[-1]["summary"]
    assert summary["overall"]["success"]["n"] == summary["overall"]["episodes"] == 4
    assert {"small_success", "small_reward"} <= summary["measures"].keys()


def test_one_model_may_be_all_of_them(tmp_path):
    alone = trained_run.train(tmp_path / "one", "stages.0.steps=1", *ONE, recipe=RECIPE)
    assert {t.model for e in episodes(alone) for t in e.trajectories} == {"policy"}
    [line] = metrics.read(alone / "metrics.jsonl")
    played = [e.trajectories[0] for e in episodes(alone)]
    assert line.values["success"] == pytest.approx(np.mean([t.success for t in played]))
    assert line.values["reward"] == pytest.approx(np.mean([t.reward for t in played]))


async def replayed(path):
    with EpisodeStore(path) as store:
        rows = [row for row in store.query(limit=99) if row.stage == "rl"]
        return [one async for one in replay(RunFolder.read(path), [(row, store.read(row)) for row in rows])]


def test_its_episodes_replay(run):
    assert {one.verdict for one in asyncio.run(replayed(run))} == {Verdict.SAME}


def test_calls_are_shown_in_the_order_of_play(run):
    several = next(e for e in episodes(run) if sum(t.agent == "walker" for t in e.trajectories) > 1)
    shown = CliRunner().invoke(app, ["show", str(run), several.id]).output
    assert "walker 1, turn 1" in shown
    assert shown.index("agent, turn 1") < shown.index("walker 1, turn 1") < shown.index("walker 2, turn 1")
    prompt = CliRunner().invoke(app, ["show", str(run), several.id, "--prompt", "1", "--seat", "walker 2"]).output
    assert "Do one thing." in prompt


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("models={}", "agent: the model 'small' is to act for it, but there are policy"),
        ("models.small={snapshots={}}; stages.0.learners={}", "pool of snapshots"),
        ("agent.sub_agents.walker.model='policy'", "the model takes no seat in training"),
        ("stages.0.groups.branching={name='uniform'}", "groups.branching forks plays of Delegating"),
        ("stages.0.groups={name='spliced'}", "Splices changes or repeats plays of Delegating"),
        ("agent.sub_agents={agent={instruction='x', tasks=['y'], model='small'}}", "the world has a seat of this name"),
        (
            "env={name='colorgrid', opponent='self'}; stages.0.estimator.main_agent='leader'",
            "has others act for it, but the world has the seats",
        ),
        ("stages.0.estimator.main_agent='captain'", "MGRPO is for the seat 'captain', but those who act are agent, t"),
        ("stages.0.estimator={name='cosearch', caller='captain'}", "CoSearch is for the seat 'captain'"),
        ("stages.0.estimator={name='foresight', planner='captain'}", "Foresight is for the seat 'captain'"),
        ("stages.0.estimator={name='by_origin', base={name='mgrpo'}}", "inside of ByOrigin it has those of one"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, changes, message):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    with pytest.raises(ConfigError, match=message):
        resolve(toml.read(tmp_path / "recipe.toml", changes.split("; ")))
