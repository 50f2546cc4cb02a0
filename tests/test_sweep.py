"""A sweep trains every combination of values and seeds once, goes on where it was stopped, and compares them."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import trained_run
from test_cli import sojourn

from sojourn import sweep
from sojourn.commands import sweep as command
from sojourn.errors import ConfigError
from sojourn.intervals import Estimate
from sojourn.record.run import RunFolder

SMALL = ("evaluation.tasks=2", "stages.0.steps=0")


@pytest.fixture
def folder(tmp_path):
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
    with pytest.raises(ConfigError, match="a sweep of 2 runs, 1 of them different"):
        sweep.plan([], [0, 0], [])


def test_seeds_make_an_interval_and_one_seed_keeps_its_own():
    own = Estimate(0.5, 0.2, 0.8, 10)
    assert sweep._point(3, [own]).success == own
    both = sweep._point(3, [own, own._replace(mean=0.7)])
    assert (both.seeds, both.success.mean, both.success.low, both.success.high) == (2, 0.6, 0.0, 1.0)


def test_a_sweep_trains_compares_and_goes_on(folder):
    """One of its runs fails: it is told, and tried again, and the other is trained once."""
    vary = "model.name=['absent.gguf', 'tiny:layers=1,hidden=64']"
    words = ("sweep", "r.toml", *SMALL, "--vary", vary, "--seeds", "3", "--out", "s")
    first = sojourn(folder, *words, "--jobs", "2", timeout=200)
    made = folder / "s" / "name=tiny-layers=1,hidden=64.seed=3"
    assert (first.returncode, "1 of 2 runs failed" in first.stderr) == (1, True), first
    assert "name=absent.gguf.seed=3: failed, sojourn: model 'absent.gguf'" in first.stdout
    assert [path.parent for path in folder.glob("s/*/config.toml")] == [made]
    assert "| name=tiny-layers=1,hidden=64 | 1 | 1 | 0% [" in (folder / "s" / "table.md").read_text()
    assert (folder / "s" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert sweep.finished(made)
    kept = (made / "evaluations.json").stat().st_mtime_ns
    (folder / "s" / "table.md").unlink()
    assert sojourn(folder, *words, timeout=200).returncode == 1
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
