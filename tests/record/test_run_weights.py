"""RUN@NAME means the same weights wherever a run is named: evaluation, the start of another run, the arena."""

import shutil

import pytest
import trained_run
from test_cli import sojourn

from sojourn.config import toml
from sojourn.errors import ConfigError, RecordError
from sojourn.intervals import Estimate
from sojourn.record import checkpoint
from sojourn.record.run import RunFolder
from sojourn.record.run_weights import NamedRun, available_weights, find_weights, is_best
from sojourn.record.summary import Summary, TaskStatistics
from sojourn.train import run as training
from sojourn.train.resolve import resolve
from sojourn.train.weights import found_weights


@pytest.fixture
def run(trained):
    return trained


def recipe(run, weights):
    return resolve(toml.read(run, [f"model.weights={weights}"])).recipe


def test_a_run_and_its_weights_are_told_apart(run, tmp_path):
    assert NamedRun.parse(str(run)) == (run, "")
    assert NamedRun.parse(f"{run}@warmup") == (run, "warmup")
    odd = tmp_path / "a@b"
    shutil.copytree(run, odd)
    assert NamedRun.parse(str(odd)) == (odd, "")
    assert NamedRun.parse(f"{odd}@1") == (odd, "1")


def test_names_and_steps_find_checkpoints(run):
    assert find_weights(run, "").checkpoint.step == 2
    assert find_weights(run, "warmup").checkpoint.step == find_weights(run, "1").checkpoint.step == 1
    assert find_weights(run, "before").checkpoint is None
    with pytest.raises(ConfigError, match="it has before, warmup, rl"):
        find_weights(run, "7")


def test_a_run_begins_with_the_named_weights_of_another(run):
    assert [found_weights(recipe(run, f"{run}{at}")).step for at in ("", "@1", "@warmup", "@rl")] == [2, 1, 1, 2]
    with pytest.raises(RecordError, match="names the weights that the run began with"):
        found_weights(recipe(run, f"{run}@before"))
    with pytest.raises(RecordError, match="expected a run folder, such as runs/x"):
        found_weights(recipe(run, run.with_name("absent")))


def test_eval_takes_the_named_weights(run):
    lines = {at: sojourn(run.parent, "eval", f"run{at}", "evaluation.tasks=1") for at in ("", "@warmup", "@before")}
    assert all(done.returncode == 0 for done in lines.values()), lines
    shown = dict(zip(("step 2", "step 1", "before"), (done.stdout for done in lines.values()), strict=True))
    assert [name for name, text in shown.items() if name not in text] == []
    refused = sojourn(run.parent, "eval", "run@9")
    assert refused.returncode == 2
    assert "this run has no such weights; it has before, warmup, rl" in refused.stderr


def summary(success, reward):
    one = [Estimate(value, value, value, 4) for value in (success, reward, 1.0, 1.0, 0.0)]
    return Summary(TaskStatistics(4, 4, *one), {}, {})


def test_the_best_evaluation_is_that_with_most_success_then_most_reward_then_the_latest(tmp_path):
    with RunFolder.create(tmp_path / "run", 'name = "r"\n') as run:
        for name, success, reward, best in (
            ("before", 0.9, 0.9, True),  # it is not compared: before training there is no checkpoint
            ("rl-1", 0.5, 0.5, True),
            ("rl-2", 0.5, 0.5, True),
            ("rl-2b", 0.5, 0.4, False),
            ("rl-3", 0.5, 0.6, True),
            ("rl-4", 0.4, 0.9, False),
        ):
            run.add_evaluation(name, "rl", 1, summary(success, reward))
            assert is_best(run, name) == best, name


def test_the_best_checkpoint_is_kept_and_named(tmp_path, monkeypatch):
    """Of four steps, each evaluated, the second is made the best one: it outlives later checkpoints and the stage."""
    rewards = iter((0.0, 0.1, 0.3, 0.2, 0.1, 0.25))  # before, warmup, and after each of the four steps
    monkeypatch.setattr(training, "summarise", lambda groups, scores: summary(0.5, next(rewards)))
    changes = ("stages.1.steps=4", "evaluation.every=1", "record.keep=1")
    run = trained_run.train(tmp_path / "run", *changes)
    assert [one.name for one in available_weights(run)] == ["before", "warmup", "2", "rl"]
    assert [find_weights(run, name).checkpoint.step for name in ("best", "", "last")] == [2, 2, 5]
    notes = []
    weights = find_weights(run, "best").checkpoint.weights / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert find_weights(run, "", notes.append).checkpoint.step == 5
    assert "is damaged" in notes[0]
    checkpoint.checkpoints(run / "checkpoints")[-1].mark_best()
    assert find_weights(run, "best").checkpoint.step == 5


def test_a_run_that_keeps_no_best_checkpoint_says_so(tmp_path):
    run = trained_run.train(tmp_path / "run", "record.keep_best=false")
    assert find_weights(run, "").checkpoint.step == find_weights(run, "last").checkpoint.step == 2
    with pytest.raises(ConfigError, match=r"record\.keep_best = true keeps it"):
        find_weights(run, "best")
