"""The whole loop on a tiny real model: reproducible bit for bit, exact in its tokens, and resumable after SIGKILL."""

import asyncio
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import spawned
from trained_run import KILLED, final_weights

from sojourn.batch.flatten import flatten
from sojourn.config import toml
from sojourn.display import Display
from sojourn.errors import ConfigError, RecordError
from sojourn.record import checkpoint, metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.run_status import read_status
from sojourn.sources.slots import Slots
from sojourn.train.assemble import assemble
from sojourn.train.resolve import Resolved, resolve
from sojourn.train.run import run_recipe

RECIPE = """
name = "loop"
[model]
name = "tiny:layers=1,hidden=64"
dtype = "fp32"
[backend]
name = "torch"
deterministic = true
[env]
name = "toy"
rooms = 2
[sampling]
max_tokens = 6
[rollout.limits]
turns = 3
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
steps = 3
groups = { name = "slots", width = 2, size = 3 }
estimator = { name = "reinforce", baseline = "none" }
losses = [{ name = "ppo" }, { name = "kl" }, { name = "entropy" }]
streams = [{ name = "ref_logprobs" }]
optim = { lr = 1e-3 }
[reward]
name = "native"
malformed = -0.5
"""


def recipe(folder: Path, *overrides: str) -> Resolved:
    path = folder / "recipe.toml"
    path.write_text(RECIPE)
    return resolve(toml.read(path, overrides))


def run(resolved: Resolved, path: Path) -> Path:
    with RunFolder.create(path, toml.dump(resolved.table)) as folder, Display(live=False) as display:
        asyncio.run(run_recipe(resolved.recipe, folder, display))
    return path


def assert_same_weights(one: Path, two: Path) -> None:
    first, second = final_weights(one), final_weights(two)
    assert first.keys() == second.keys()
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name], err_msg=name)


def test_same_seed_same_run_bit_for_bit_and_everything_is_recorded(tmp_path):
    resolved = recipe(tmp_path)
    first, second = run(resolved, tmp_path / "a"), run(resolved, tmp_path / "b")
    assert_same_weights(first, second)
    other = run(recipe(tmp_path, "seed=1"), tmp_path / "c")
    assert any((final_weights(other)[name] != values).any() for name, values in final_weights(first).items())

    lines = list(metrics.read(first / "metrics.jsonl"))
    assert [(line.stage, line.step) for line in lines] == [("warmup", 0), ("warmup", 1), *(("rl", s) for s in range(3))]
    assert [line.values["part_success"] for line in lines if line.stage == "rl"] == [
        line.values["success"] for line in lines if line.stage == "rl"
    ], "the parts of the reward, each as the mean of the step"
    assert {e["name"] for e in RunFolder.read(first).evaluations()} == {"before", "warmup", "rl"}
    with EpisodeStore(first) as store:
        groups = list(store.groups("rl"))
        assert [(len(g.episodes), g.slot) for g in groups] == [(3, slot) for slot in range(6)]
        assert not store.unreadable()
    # a run folder is itself a valid config
    assert resolve(toml.read(first)).recipe == resolved.recipe


def test_streams_that_are_only_recorded_change_nothing(tmp_path):
    plain = run(recipe(tmp_path), tmp_path / "plain")
    told = run(recipe(tmp_path, "record.streams=[{name='entropy'}]"), tmp_path / "told")
    assert_same_weights(plain, told)
    with EpisodeStore(plain) as store:
        assert list(store.record(next(store.query(stage="rl")).id).streams) == ["ref_logprobs", "weight"]
    with EpisodeStore(told) as store:
        record = store.record(next(store.query(stage="rl")).id)
        trajectory = record.episode.trajectories[0]
        entropy, weight = record.streams["entropy"][0], record.streams["weight"][0]
        assert [len(of) for of in entropy] == [len(turn.sample.tokens) for turn in trajectory.turns]
        assert all((of > 0).all() for of in entropy), "chance says nothing for certain after two steps"
        groups = [group for group in store.groups("rl") if group.slot < 2]  # of the same step
        sampled = sum(len(turn.sample.tokens) for g in groups for t in g.trajectories for turn in t.turns)
        assert weight[0][0] == pytest.approx(1 / sampled)


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ("[{name='curiosity'}]", "learns, reads a critic or asks a model"),
        ("[{name='entropy'}, {name='entropy'}]", "two of them provide the same values"),
        ("[{name='entrpy'}]", "did you mean 'entropy'"),
    ],
)
def test_streams_that_cannot_only_be_recorded_are_refused(tmp_path, streams, message):
    with pytest.raises(ConfigError, match=message):
        recipe(tmp_path, f"record.streams={streams}")


def test_what_a_filter_leaves_out_is_recorded_and_counted_but_not_trained(tmp_path):
    resolved = recipe(tmp_path, "stages.rl.filters=[{name='roc', fraction=0.6}]", "stages.rl.groups.size=5")
    path = run(resolved, tmp_path / "run")
    with EpisodeStore(path) as store:
        groups = list(store.groups("rl"))
        assert sorted(len(group.episodes) for group in groups) == [2] * 6 + [3] * 6
        assert len({episode.id for group in groups for episode in group.episodes}) == 30
    steps = [line.values for line in metrics.read(path / "metrics.jsonl") if line.stage == "rl"]
    assert [values["episodes"] for values in steps] == [10] * 3
    turns = {n: [t for g in groups if len(g.episodes) == n for tr in g.trajectories for t in tr.turns] for n in (2, 3)}
    kept, left = (sum(len(t.context) + len(t.sample.tokens) for t in turns[n]) for n in (3, 2))
    assert left > 0
    assert sum(values["sequence_tokens"] for values in steps) == kept
    sampled = {n: sum(len(t.sample.tokens) for t in some) for n, some in turns.items()}
    assert sum(values["trained_tokens"] for values in steps) == sampled[3]
    assert sum(values["sampled_tokens"] for values in steps) == sum(sampled.values())


def test_a_step_that_cannot_be_recorded_stops_the_run_which_then_goes_on(tmp_path):
    """Episodes are written while the next step is played: what keeps them from the disk is raised all the same."""
    resolved, path = recipe(tmp_path), tmp_path / "run"
    obstacle = path / "tokens" / f".rl-000001-0.npz.{os.getpid()}"  # where the file is made first

    class Hinders(Display):
        def step(self, step, values):
            super().step(step, values)
            obstacle.mkdir(exist_ok=True)

    with RunFolder.create(path, toml.dump(resolved.table)) as folder:
        refused = pytest.raises(RecordError, match=r"rl-000001-0.npz cannot be written \(Is a directory\)")
        with refused, Hinders(live=False) as display:
            asyncio.run(run_recipe(resolved.recipe, folder, display))
        with EpisodeStore(path) as store:
            assert [count.step for count in store.steps() if count.stage == "rl"] == [0]
        obstacle.rmdir()
        with Display(live=False) as display:
            asyncio.run(run_recipe(resolved.recipe, folder, display, resume=True))
    with EpisodeStore(path) as store:
        assert [(count.step, count.groups) for count in store.steps() if count.stage == "rl"] == [
            (s, 2) for s in range(3)
        ]
        assert not store.unreadable()


async def test_trainer_logprobs_equal_sampler_logprobs_on_policy(tmp_path):
    resolved = recipe(tmp_path, "model.name='tiny'")
    async with assemble(resolved.recipe) as components:
        components.trainer.begin(resolved.recipe.stages[1].optim, 1, reference=False)
        source = Slots(width=3, size=4).bind(components, "rl", 1)
        batch, _ = flatten(await source.take(0))
        scored = (await components.trainer.forward(batch)).logprobs
        where = batch.weight > 0
        assert where.sum() > 100
        assert np.abs(scored - batch.logprobs)[where].max() < 1e-3


@pytest.mark.parametrize("max_lag", [1, 3])
def test_lag_stays_within_its_bound_and_every_slot_is_trained_once(tmp_path, max_lag):
    resolved = recipe(tmp_path, f"stages.rl.groups.max_lag={max_lag}", "stages.rl.steps=6")
    path = run(resolved, tmp_path / "run")
    lines = [line.values for line in metrics.read(path / "metrics.jsonl") if line.stage == "rl"]
    assert 0 < max(line["lag_max"] for line in lines) <= max_lag
    assert 0 < max(line["sampler_reuse"] for line in lines) < 1
    with EpisodeStore(path) as store:
        assert sorted(g.slot for g in store.groups("rl")) == list(range(12))


@pytest.mark.parametrize("max_lag", [0, 1])
def test_a_killed_run_resumes_with_nothing_lost_or_repeated_and_on_policy_to_the_same_weights(tmp_path, max_lag):
    resolved = recipe(tmp_path, f"stages.rl.groups.max_lag={max_lag}")
    (tmp_path / "recipe.toml").write_text(toml.dump(resolved.table))
    killed = tmp_path / "killed"
    spawned.killed(KILLED, tmp_path, "train", str(tmp_path / "recipe.toml"), "--out", str(killed))
    found = checkpoint.latest(killed / "checkpoints")
    assert found is not None
    assert found.step == 3  # in the second stage
    spawned.resumed(killed)
    if max_lag == 0:
        assert_same_weights(run(resolved, tmp_path / "whole"), killed)
    with EpisodeStore(killed) as store:
        assert [g.slot for g in store.groups("rl")] == list(range(6))
    lines = [(line.stage, line.step) for line in metrics.read(killed / "metrics.jsonl")]
    assert lines == [("warmup", 0), ("warmup", 1), *(("rl", s) for s in range(3))]


def test_the_checkpoints_of_every_so_many_steps_stay(tmp_path):
    kept = {"stages.rl.steps=5", "record.checkpoint_every=1", "record.keep=1", "record.keep_best=false"}
    made = run(recipe(tmp_path, *kept, "record.keep_every=2"), tmp_path / "run")
    assert [(c.step, c.marked) for c in checkpoint.checkpoints(made / "checkpoints")] == [
        (2, True), (4, True), (6, True), (7, True),
    ]  # fmt: skip
    alone = run(
        recipe(tmp_path, *(kept - {"record.checkpoint_every=1"}), "record.checkpoint_every=0", "record.keep_every=3"),
        tmp_path / "alone",
    )
    assert [c.step for c in checkpoint.checkpoints(alone / "checkpoints")] == [2, 5, 7]
    assert_same_weights(made, alone)


def test_a_stage_leaves_its_last_weights_alone_and_a_run_goes_on_from_them(tmp_path):
    resolved = recipe(tmp_path)
    whole, cut = run(resolved, tmp_path / "whole"), run(resolved, tmp_path / "cut")
    kept = checkpoint.checkpoints(whole / "checkpoints")
    assert [(c.step, c.marked) for c in kept] == [(2, True), (5, True)]
    assert [file.parent.parent.name for file in whole.rglob("optimizer.safetensors")] == ["step-000005"]
    weights_only = run(recipe(tmp_path, "record.keep_optimizer=false"), tmp_path / "small")
    assert not list(weights_only.rglob("optimizer.safetensors"))
    shutil.rmtree(checkpoint.checkpoints(cut / "checkpoints")[-1].path)
    with RunFolder.open(cut) as folder, Display(live=False) as display:
        asyncio.run(run_recipe(resolved.recipe, folder, display, resume=True))
    assert_same_weights(whole, cut)


def test_drift_starts_at_zero_and_minibatches_share_a_schedule(tmp_path):
    """The first step's plays come from the stage's first weights; two updates a step end no schedule early."""
    overrides = ["record.drift_groups=1", "stages.rl.minibatches=2", "stages.rl.optim.schedule={name='linear'}"]
    lines = list(metrics.read(run(recipe(tmp_path, *overrides), tmp_path / "a") / "metrics.jsonl"))
    rl = [line.values for line in lines if line.stage == "rl"]
    assert not any("drift" in line.values for line in lines if line.stage == "warmup")
    assert rl[0]["drift"] == pytest.approx(0.0, abs=1e-6)
    assert rl[-1]["drift"] > 1e-5
    assert all(values["lr"] > 0 for values in rl)
    assert all(values["sequence_tokens"] >= values["computed_tokens"] > values["trained_tokens"] > 0 for values in rl)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_step_with_nothing_to_train_goes_on_in_the_schedule(tmp_path, minibatches):
    """However many minibatches there are: each update of a stage has its place in the schedule, also an empty one."""
    overrides = ["stages.rl.groups.zero_signal='drop'", "stages.rl.optim.schedule={name='linear'}", "stages.rl.steps=2"]
    path = run(recipe(tmp_path, *overrides, f"stages.rl.minibatches={minibatches}"), tmp_path / "a")
    rl = [line.values for line in metrics.read(path / "metrics.jsonl") if line.stage == "rl"]
    assert [values["trained_tokens"] for values in rl] == [0, 0]
    of_updates = np.linspace(1e-3, 0, 2 * minibatches, endpoint=False).reshape(2, minibatches)
    assert [values["lr"] for values in rl] == pytest.approx(of_updates.mean(1).tolist())


def test_the_metrics_of_two_seats_count_episodes_and_compare_within_seats(tmp_path):
    overrides = ["env={name='matrix', opponent='self', rounds=2, choices=true}", "agent={name='plain', choices=true}"]
    resolved = recipe(tmp_path, *overrides, "stages.warmup.groups={name='slots', width=1, size=2}")
    path = run(resolved, tmp_path / "a")
    line = [line for line in metrics.read(path / "metrics.jsonl") if line.stage == "rl"][-1]
    with EpisodeStore(path) as store:
        records = list(store.records("rl", [line.step]))
    alike = []
    for record in records:
        assert {len(episode.trajectories) for episode in record.group.episodes} == {2}
        of_seats = {(t.agent, score.total) for t, score in zip(record.group.trajectories, record.scores, strict=True)}
        alike.append(len(of_seats) == 2)
    assert line.values["episodes"] == 2 * 3
    assert line.values["episodes_per_s"] == pytest.approx(2 * 3 / line.values["seconds_step"])
    assert line.values["zero_signal"] == pytest.approx(np.mean(alike))
    success = read_status(path).success
    assert success is not None
    assert success.n == 2 * 3
