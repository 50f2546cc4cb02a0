"""A sweep trains every combination of values and seeds once, goes on where it was stopped, and compares them."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import trained_run
from spawned import fork_children, sojourn
from typer.testing import CliRunner

from sojourn import sweep
from sojourn.cli import app
from sojourn.commands import sweep as command
from sojourn.errors import ConfigError, RecordError
from sojourn.intervals import Estimate, wilson
from sojourn.record.run import RunFolder

SMALL = ("evaluation.tasks=2", "stages.0.steps=0")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    fork_children(monkeypatch, tmp_path)
    (tmp_path / "r.toml").write_text(trained_run.RECIPE)
    return tmp_path


def test_the_plan_has_every_combination_with_every_seed():
    runs = sweep.plan(["a.lr=[1e-5, 3e-5]", "env.kind=['x/y']"], [0, 7], ["steps=3"])
    assert [run.name for run in runs] == [
        "lr=1e-05,kind=x-y.seed=0",
        "lr=1e-05,kind=x-y.seed=7",
        "lr=3e-05,kind=x-y.seed=0",
        "lr=3e-05,kind=x-y.seed=7",
    ]
    assert runs[-1].overrides == ("steps=3", "a.lr=3e-05", 'env.kind="x/y"', "seed=7")
    assert [run.name for run in sweep.plan([], [1], [])] == ["base.seed=1"]
    for vary in ("lr", "lr=1e-5", "lr=[]", "lr=[{a = 1}]", "=[1]"):
        with pytest.raises(ConfigError, match="expected a key and a list of numbers or texts"):
            sweep.plan([vary], [0], [])
    for vary, given in ((["seed=[1, 2]"], []), ([], ["seed=5"])):
        with pytest.raises(ConfigError, match="in a sweep, --seeds names the seeds, such as --seeds 1,2"):
            sweep.plan(vary, [0], given)
    with pytest.raises(ConfigError, match="a sweep of 2 runs, 1 of them different"):
        sweep.plan([], [0, 0], [])


def test_a_sweep_that_has_no_folder_is_refused_before_it_trains(folder):
    done = CliRunner().invoke(app, ["sweep", str(folder / "r.toml"), "--out", str(folder / "r.toml")])
    assert isinstance(done.exception, RecordError), done.exception
    assert "r.toml is no folder: give a folder, or the name of a new one" in str(done.exception)


def test_seeds_make_an_interval_and_one_seed_keeps_its_own():
    own = Estimate(0.5, 0.2, 0.8, 10)
    assert sweep._point(3, {4: own}).success == own
    both = sweep._point(3, {0: own, 1: own._replace(mean=0.7)})
    assert (both.success.mean, both.success.low, both.success.high) == (0.6, 0.0, 1.0)
    assert {seed: one.mean for seed, one in both.by_seed.items()} == {0: 0.5, 1: 0.7}


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ((0.9, 1.0, 0.8), "+20 [+14, +26], better"),  # every seed by 20 points, whatever the seeds differ by
        ((0.5, 0.6, 0.4), "-20 [-27, -12], worse"),
        ((0.9, 0.7, 0.6), "+3 [-35, +41], not shown to differ"),
        ((0.9,), "needs two seeds of both"),
    ],
)
def test_variants_are_compared_seed_by_seed(others, said):
    first, other = (
        sweep._point(9, {seed: Estimate(success, 0, 1, 100) for seed, success in enumerate(of_seeds)})
        for of_seeds in ((0.7, 0.8, 0.6), others)
    )
    assert sweep.difference(first, other) == said
    lines = sweep.table({"base": [first], "lr=1": [other], "lr=2": []})
    assert lines[2].startswith("| base | 3 | 9 | 70% [45–95] | 70 80 60 |  | 70% [45–95] | 9 |")
    assert f"| {said} |" in lines[3]
    assert lines[4].startswith("| lr=2 | 0 |")


def rated(plays: int, *successes: float) -> sweep.Point:
    return sweep._point(9, {seed: Estimate(success, 0, 1, plays) for seed, success in enumerate(successes)})


def test_seeds_that_agree_by_chance_show_nothing():
    """One task more of 16 in either of two seeds: the t interval of the differences has no width."""
    assert sweep.difference(rated(16, 0.5, 0.75), rated(16, 0.5625, 0.8125)).endswith("not shown to differ")
    assert sweep.difference(rated(16, 1.0, 1.0), rated(16, 0.9375, 0.9375)).endswith("not shown to differ")
    assert sweep.difference(rated(512, 0.5, 0.75), rated(512, 0.5625, 0.8125)).endswith("better")
    perfect = rated(16, 1.0, 1.0, 1.0).success
    assert (perfect.mean, perfect.low, perfect.high) == (1.0, wilson(48, 48).low, 1.0)


@pytest.mark.parametrize(("tasks", "success"), [(16, 0.5), (16, 0.9), (64, 0.98)])
def test_equal_variants_seldom_seem_to_differ(tasks: int, success: float):
    """With two seeds, in at most 5% of sweeps, as 95% intervals promise."""
    rng = np.random.default_rng(0)
    pairs = [[rated(tasks, *rng.binomial(tasks, success, 2) / tasks) for _ in range(2)] for _ in range(400)]
    said = [sweep.difference(*pair).endswith(("better", "worse")) for pair in pairs]
    assert np.mean(said) < 0.05


def test_seeds_that_stopped_early_are_part_of_the_end():
    """Of three seeds two stopped at step 8, and the third goes on to 12, or is not finished."""
    made = [Estimate(success, 0, 1, 9) for success in (0.5, 0.4, 0.3)]
    eight = sweep._point(8, {0: made[0], 1: made[1], 2: made[2]._replace(mean=0.2)})
    eight = eight._replace(ended={0: made[0], 1: made[1]})
    twelve = sweep._point(12, {2: made[2]})
    whole = twelve._replace(ended={2: made[2]})
    assert sweep.table({"base": [eight, whole]})[2].startswith("| base | 3 | 8–12 | 40% [15–65] | 50 40 30 |")
    assert sweep.table({"base": [eight, twelve]})[2].startswith("| base | 2 | 8 | 45%")
    assert sweep.end([twelve]) == twelve


def test_a_sweep_trains_compares_and_goes_on(folder):
    """One of its runs fails: it is told, and tried again, and the other is trained once."""
    vary = "model.name=['absent.gguf', 'tiny:layers=1,hidden=64']"
    words = ("sweep", "r.toml", *SMALL, "--vary", vary, "--seeds", "3", "--out", "s")
    first = sojourn(folder, *words, "--jobs", "2")
    made = folder / "s" / "name=tiny-layers=1,hidden=64.seed=3"
    assert (first.returncode, "1 of 2 runs failed" in first.stderr) == (1, True), first
    assert "name=absent.gguf.seed=3: failed, sojourn: model 'absent.gguf'" in first.stdout
    assert f"trains; what it prints is in s/{made.name}.log" in first.stdout
    assert "finished (2 of 2)" in first.stdout or "finished (1 of 2)" in first.stdout
    assert [path.parent for path in folder.glob("s/*/config.toml")] == [made]
    assert "| name=tiny-layers=1,hidden=64 | 1 | 1 | 0% [" in (folder / "s" / "table.md").read_text()
    assert (folder / "s" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert sweep.finished(made)
    kept = (made / "evaluations.json").stat().st_mtime_ns
    (folder / "s" / "table.md").unlink()
    assert sojourn(folder, *words).returncode == 1
    assert (made / "evaluations.json").stat().st_mtime_ns == kept
    assert (folder / "s" / "table.md").exists()
    refused = sojourn(folder, *words, "evaluation.samples=2")
    assert (refused.returncode, "is the run of another recipe" in refused.stderr) == (2, True)


def test_an_unfinished_run_is_resumed(folder, trained, monkeypatch):
    run = Path(shutil.copytree(trained, folder / "base.seed=0"))
    assert sweep.finished(run)
    evaluations = RunFolder.read(run).evaluations()
    (run / "evaluations.json").write_text(json.dumps(evaluations[:-1]))
    assert not sweep.finished(run)
    called = []
    monkeypatch.setattr(
        command.subprocess, "run", lambda words, **_: called.append(words) or SimpleNamespace(returncode=0)
    )
    for planned in (sweep.PlannedRun("base", 0, ("seed=0",)), sweep.PlannedRun("base", 1, ("seed=1",))):
        assert command._train(folder / "r.toml", planned, folder / planned.name) == ""
    assert called[0][3:] == ["train", "--resume", str(run)]
    assert called[1][3:] == ["train", str(folder / "r.toml"), "seed=1", "--out", str(folder / "base.seed=1")]


def test_a_value_that_is_the_recipes_own_is_not_trained_again(folder):
    words = ("sweep", "r.toml", *SMALL, "stages.1.steps=0", "--seeds", "3", "--out", "s")
    assert sojourn(folder, *words).returncode == 0
    own, other = RunFolder.read(folder / "s" / "base.seed=3").config["sampling"]["max_tokens"], 5
    done = sojourn(folder, *words, "--vary", f"sampling.max_tokens=[{own}, {other}]")
    assert done.returncode == 0, done
    assert f"max_tokens={own}.seed=3: has the config of base.seed=3, and is not trained again" in done.stdout
    made = {path.parent.name for path in (folder / "s").glob("*/config.toml")}
    assert made == {"base.seed=3", f"max_tokens={other}.seed=3"}
    assert f"| max_tokens={own} | 1 | 0 | " in (folder / "s" / "table.md").read_text()


def test_two_equal_runs_of_a_plan_are_one(tmp_path):
    runs = sweep.plan(["a=[1, 2, 3]"], [0], [])
    first, second, third = sweep.recognise(runs, [{"a": 1}, {"a": 2}, {"a": 1}], tmp_path)
    assert (first.folder, second.folder, third.folder) == ("a=1.seed=0", "a=2.seed=0", "a=1.seed=0")
