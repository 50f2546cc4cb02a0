"""A run goes on with more steps or other values: what may change, that it is recorded, and nothing else differs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from trained_run import untimed, weight_bytes
from typer.testing import CliRunner

import sojourn
from sojourn.backends.torch.backend import Torch
from sojourn.cli import app
from sojourn.errors import ConfigError
from sojourn.record import metrics
from sojourn.record.changes import recorded_changes
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.paired import evaluations
from sojourn.record.run import NEXT_CONFIG, RunFolder
from sojourn.record.run_status import State, read_status
from sojourn.train import changed_config
from sojourn.train.lost_steps import forget_lost_steps
from sojourn.train.resolve import load

RECIPE = """
name = "more"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1, kernel = false, deterministic = true }
env = { name = "toy", rooms = 2 }
sampling = { max_tokens = 8 }
rollout = { limits = { turns = 3 } }
evaluation = { tasks = 2 }
reward = { name = "native", malformed = -0.5 }

[[stages]]
name = "warmup"
steps = 1
groups = { name = "experts", width = 2, distinct_tasks = 4, success_only = false }
estimator = { name = "constant" }
losses = [{ name = "nll" }]
optim = { lr = 1e-3 }

[[stages]]
name = "rl"
steps = 2
groups = { name = "slots", width = 2, size = 3 }
estimator = { name = "reinforce", baseline = "none" }
losses = [{ name = "ppo" }, { name = "kl" }, { name = "entropy" }]
streams = [{ name = "ref_logprobs" }]
optim = { lr = 1e-3 }
"""


def train(path: Path, **overrides: Any) -> Path:
    recipe = path.with_name(f"{path.name}.toml")
    recipe.write_text(RECIPE)
    return sojourn.train(recipe, out=path, progress=False, **overrides).path


def resumed(path: Path, **overrides: Any) -> Path:
    return sojourn.train(path, resume=True, progress=False, **overrides).path


def steps(count: int) -> dict[str, Any]:
    return {"stages.rl.steps": count}


def computed(path: Path) -> list[tuple[str, int, dict[str, float]]]:
    return [(one.stage, one.step, untimed(one.values)) for one in metrics.read(path / "metrics.jsonl")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("more") / "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with four steps at once."""
    return train(tmp_path_factory.mktemp("whole") / "run", **steps(4))


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def test_more_steps_of_a_finished_run_equal_as_many_at_once(run: Path, whole: Path) -> None:
    resumed(run, **steps(4))
    assert weight_bytes(run) == weight_bytes(whole)
    assert computed(run) == computed(whole)
    assert RunFolder.read(run).config == RunFolder.read(whole).config
    assert [e["name"] for e in RunFolder.read(run).evaluations()] == ["before", "warmup", "rl-2", "rl"]
    assert read_status(run).state is State.FINISHED
    ends = [{k: e[k] for k in ("name", "step", "summary")} for e in RunFolder.read(run).evaluations()[-1:]]
    assert ends == [{k: e[k] for k in ("name", "step", "summary")} for e in RunFolder.read(whole).evaluations()[-1:]]


def test_the_episodes_of_the_former_end_keep_to_its_evaluation(run: Path) -> None:
    with EpisodeStore(run) as store:
        before = [(row.id, row.reward, row.seed) for row in store.query(stage="evaluation-rl")]
    resumed(run, **steps(4))
    with EpisodeStore(run) as store:
        renamed = [(row.id, row.reward, row.seed) for row in store.query(stage="evaluation-rl-2")]
        assert renamed == [(id.replace("evaluation-rl/", "evaluation-rl-2/"), *more) for id, *more in before]
        assert [store.load(id).id for id, *_ in renamed] == [id for id, *_ in renamed]
        assert len(list(store.query(stage="evaluation-rl"))) == len(before) > 0
        assert all(one.by_task() for one in evaluations(RunFolder.read(run), store))


def test_what_evaluated_weights_that_are_lost_is_forgotten(run: Path) -> None:
    """As where a run was killed after an evaluation that is newer than its last checkpoint."""
    with RunFolder.open(run) as folder, EpisodeStore(run, write=True) as store:
        forget_lost_steps(folder, store, load(run).recipe, 1, 2)
        assert [e["name"] for e in folder.evaluations()] == ["before", "warmup", "rl"]
        forget_lost_steps(folder, store, load(run).recipe, 1, 1)
        assert [e["name"] for e in folder.evaluations()] == ["before", "warmup"]
        stages = {(count.stage, count.step) for count in store.steps()}
        assert {one for one in stages if one[0] in ("rl", "evaluation-rl")} == {("rl", 0)}
        forget_lost_steps(folder, store, load(run).recipe, 0, 1)
        assert [e["name"] for e in folder.evaluations()] == ["before", "warmup"]
        assert not any(count.stage == "rl" for count in store.steps())


def test_a_run_that_ended_within_a_cycle_of_lookahead_goes_on_in_it(tmp_path: Path, whole: Path) -> None:
    """Outer steps are after the second and the fourth step; what is trained is what sampled, after each of them."""
    cycles = {"stages.rl.optim.lookahead.every": 2}
    parts, at_once = (train(tmp_path / str(count), **cycles, **steps(count)) for count in (3, 4))
    resumed(parts, **steps(4))
    assert weight_bytes(parts) == weight_bytes(at_once)
    assert computed(parts) == computed(at_once)
    assert weight_bytes(at_once) != weight_bytes(whole)
    assert all(abs(values["kl"]) < 1e-5 for stage, _, values in computed(at_once) if stage == "rl")


def test_another_learning_rate_changes_the_steps_after_it_alone(run: Path, whole: Path) -> None:
    resumed(run, **steps(4), **{"stages.rl.optim.lr": 5e-4})
    assert computed(run)[:3] == computed(whole)[:3]
    assert weight_bytes(run) != weight_bytes(whole)


def test_a_change_is_recorded_and_shown_and_the_config_is_that_of_now(run: Path) -> None:
    result = CliRunner().invoke(app, ["train", "--resume", str(run), "stages.rl.steps=3", "stages.rl.optim.lr=5e-4"])
    assert result.exit_code == 0, result.output
    sentence = "changed after step 2 of 'rl': stages.rl.steps 2 -> 3, stages.rl.optim.lr 0.001 -> 0.0005"
    assert sentence in " ".join(result.output.split())
    (change,) = recorded_changes(RunFolder.read(run))
    assert str(change) == sentence
    assert sentence in " ".join(CliRunner().invoke(app, ["show", str(run)]).output.split())
    assert RunFolder.read(run).config["stages"][1]["steps"] == 3
    before = weight_bytes(run)
    resumed(run)  # the folder opens with its new config, and nothing is left
    assert weight_bytes(run) == before


def test_a_resume_without_a_change_leaves_the_run_alone(run: Path) -> None:
    config, before = (run / "config.toml").read_text(), computed(run)
    resumed(run, **steps(2))
    assert (run / "config.toml").read_text() == config
    assert computed(run) == before
    assert not recorded_changes(RunFolder.read(run))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"seed": 1}, "seed = 1: what the run has done so far was done with 0"),
        ({"stages.rl.groups.width": 3}, "stages.1.groups.width = 3"),
        ({"evaluation.tasks": 3}, "evaluation.tasks = 3"),
        ({"stages.rl.optim.lookahead.every": 2}, "stages.1.optim.lookahead.every = 2"),
        ({"stages.warmup.steps": 3}, "the stage 'warmup' is over"),
        ({"stages.rl.steps": 1}, "2 steps of it are done: expected at least 3"),
        ({"stages.rl.optim.lr": 1e-2}, "ended after 2 steps: give it more as well, such as stages.rl.steps=4"),
    ],
)
def test_what_may_not_change_is_refused_and_nothing_is_touched(
    run: Path, overrides: dict[str, Any], message: str
) -> None:
    config = (run / "config.toml").read_text()
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        resumed(run, **overrides)
    assert (run / "config.toml").read_text() == config
    assert not recorded_changes(RunFolder.read(run))


@pytest.mark.parametrize("overrides", [steps(4), {"record.keep": 3, **steps(4)}], ids=len)
def test_a_change_with_which_the_run_cannot_begin_is_taken_back(
    run: Path, overrides: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend refuses to open when the config has been written: all files are as before, and the run can go on."""
    before = {file: file.read_bytes() for file in (run / "config.toml", run / "evaluations.json")}
    with EpisodeStore(run) as store:
        held = {(count.stage, count.step, count.episodes) for count in store.steps()}

    def refuses(*given: Any, **named: Any) -> None:
        raise ConfigError("the cluster has 0")

    with monkeypatch.context() as patched:
        patched.setattr(Torch, "open", refuses)
        with pytest.raises(ConfigError, match="the cluster has 0"):
            resumed(run, **overrides)
    assert {file: file.read_bytes() for file in before} == before
    with EpisodeStore(run) as store:
        assert {(count.stage, count.step, count.episodes) for count in store.steps()} == held
    assert not recorded_changes(RunFolder.read(run))
    resumed(run, **steps(3))
    assert [e["name"] for e in RunFolder.read(run).evaluations()] == ["before", "warmup", "rl-2", "rl"]


def test_a_run_that_kept_no_moments_is_refused(tmp_path: Path) -> None:
    path = train(tmp_path / "run", **{"record.keep_optimizer": False})
    with pytest.raises(ConfigError, match="weights without the optimiser's moments"):
        resumed(path, **steps(4))


def test_a_schedule_that_counts_the_steps_is_told(run: Path) -> None:
    overrides = ["stages.rl.steps=4", "stages.rl.optim.schedule={name='cosine'}"]
    before, after = load(run), load(run, overrides)
    with RunFolder.open(run) as folder:
        changed = changed_config.change(folder, before, after)
        assert changed is not None
        (note,) = changed_config.notes(changed.resumed, after.recipe)
    assert note.startswith("the schedule of stage 'rl' counts its 4 steps from now on")


def test_an_interrupted_change_of_the_config_can_be_opened(run: Path) -> None:
    with RunFolder.open(run) as folder:
        old, text = folder.versions, folder.config_text + "\n"
        folder.replace_config(text)
        new = folder.versions
    assert NEXT_CONFIG not in new
    interrupted = {**old, NEXT_CONFIG: new["config"]}
    (run / "versions.json").write_text(json.dumps(interrupted))
    RunFolder.open(run).close()


def test_a_stage_that_was_stopped_goes_on_without_its_rule(tmp_path: Path, whole: Path) -> None:
    rule = {"stages.rl.early_stop.patience": 1, "evaluation.every": 1, "evaluation.temperature": 0.0}
    path = train(tmp_path / "run", **steps(4), **rule)
    (stopped,) = read_status(path).stopped
    assert "'rl' ended after step 2" in stopped
    resumed(path, **{"stages.rl.early_stop.patience": 0})
    assert not read_status(path).stopped
    assert computed(path)[-1][:2] == ("rl", 3)
    assert weight_bytes(path) == weight_bytes(whole)
