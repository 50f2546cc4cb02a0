"""RUN@NAME means the same weights wherever a run is named: evaluation, the start of another run, the arena."""

import shutil

import pytest
from test_cli import sojourn

from sojourn.config import toml
from sojourn.errors import ConfigError, RecordError
from sojourn.record.run_weights import NamedRun, find_weights
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
