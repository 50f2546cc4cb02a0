"""RUN@NAME means the same weights wherever a run is named: evaluation, the start of another run, the arena."""

import shutil
import tomllib

import pytest
import trained_run
from spawned import sojourn

import sojourn as sojourn_package
from sojourn.commands.train import _print_best
from sojourn.config import toml
from sojourn.errors import ConfigError, RecordError
from sojourn.intervals import Estimate
from sojourn.record import checkpoint
from sojourn.record.run import RunFolder
from sojourn.record.run_weights import NamedRun, available_weights, best_evaluation, find_weights
from sojourn.record.summary import Summary, TaskStatistics
from sojourn.terminal.output import CleanConsole
from sojourn.train import evaluate as evaluating
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
    with pytest.raises(ConfigError, match="names no weights after its @"):
        NamedRun.parse(f"{run}@")


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


def test_the_best_evaluation_is_that_with_most_success_then_most_reward(tmp_path):
    """Of equal ones it is the last at the end of a stage, else the first; those before training do not count."""
    with RunFolder.create(tmp_path / "run", 'name = "r"\n') as run:
        run.add_evaluation("before", "", 0, summary(0.9, 0.9))
        run.repeat_evaluation("collect", 5)  # a stage that trains nothing has the numbers of the one before
        assert best_evaluation(run) is None
        for stage, name, success, reward, best in (
            ("one", "one-1", 0.5, 0.5, "one-1"),
            ("one", "one-2", 0.5, 0.5, "one-1"),
            ("one", "one", 0.5, 0.5, "one"),
            ("two", "two-1", 0.5, 0.6, "two-1"),
            ("two", "two-2", 0.4, 0.9, "two-1"),
            ("two", "two", 0.5, 0.6, "two"),
        ):
            run.add_evaluation(name, stage, 1, summary(success, reward))
            assert best_evaluation(run)["name"] == best, name


def test_what_was_best_until_the_end_of_its_stage_goes(tmp_path, monkeypatch):
    """As a stage keeps no checkpoint of its middle but the best one."""
    rewards = iter((0.0, 0.1, 0.2, 0.3))  # before, warmup, rl-1, rl
    monkeypatch.setattr(evaluating, "summarise", lambda groups, scores: summary(0.5, next(rewards)))
    run = trained_run.train(tmp_path / "run", "stages.1.steps=2", "evaluation.every=1")
    assert [one.name for one in available_weights(run)] == ["before", "warmup", "rl"]
    assert find_weights(run, "").name == find_weights(run, "best").name == "rl"


def test_a_run_that_was_killed_before_the_mark_has_it_when_resumed(tmp_path):
    run = trained_run.train(tmp_path / "run")
    [best] = [one for one in checkpoint.checkpoints(run / "checkpoints") if one.best]
    (best.path / checkpoint.BEST).unlink()
    sojourn_package.train(run, resume=True, progress=False)
    assert [one.step for one in checkpoint.checkpoints(run / "checkpoints") if one.best] == [best.step]


@pytest.mark.parametrize("name", ["best", "last", "before"])
def test_no_stage_has_the_name_of_weights(name):
    with pytest.raises(ConfigError, match="neither 'before', 'best' nor 'last', as weights are called"):
        resolve(toml.Tables(tomllib.loads(trained_run.RECIPE.replace('"warmup"', f'"{name}"'))))


def test_the_command_says_where_the_best_weights_are_not_the_last(run, tmp_path, capsys):
    copied = shutil.copytree(run, tmp_path / "run")
    first, last = checkpoint.checkpoints(copied / "checkpoints")
    for best, said in (
        (last, ""),
        (first, f"the weights 'warmup' did best: {copied} names these, {copied}@last"),
    ):
        best.mark_best()
        _print_best(RunFolder.read(copied), CleanConsole(width=1000))
        assert said in (out := capsys.readouterr().out)
        assert bool(said) == bool(out)


def test_the_best_checkpoint_is_kept_and_named(tmp_path, monkeypatch):
    """Of four steps, each evaluated, the second is made the best one: it outlives later checkpoints and the stage."""
    rewards = iter((0.0, 0.1, 0.3, 0.2, 0.1, 0.25))  # before, warmup, and after each of the four steps
    monkeypatch.setattr(evaluating, "summarise", lambda groups, scores: summary(0.5, next(rewards)))
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
    with pytest.raises(ConfigError, match=r"record\.keep_best = true keeps that of the best"):
        find_weights(run, "best")
