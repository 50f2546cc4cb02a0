"""Sojourn from Python, in a script and where an event loop runs, as in a notebook."""

import io
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import sojourn
from examples.guess import Guess
from sojourn import Credit, Ending, Message, Role
from sojourn.credit.grpo import GRPO
from sojourn.curricula.shuffle import Shuffle
from sojourn.errors import ConfigError, InfrastructureError, RecordError
from sojourn.losses.ppo import PPO
from tests.trained_run import RECIPE

RL = {"name": "rl", "steps": 1, "groups": {"name": "slots", "width": 1, "size": 2}, "losses": [{"name": "ppo"}]}
GUESS = {
    "name": "guess",
    "model": {"name": "tiny:layers=1,hidden=64", "dtype": "fp32"},
    "backend": {"name": "torch", "threads": 1},
    "rollout": {"limits": {"turns": 4}},
    "sampling": {"max_tokens": 4},
    "evaluation": {"tasks": 1},
    "stages": [RL],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    table, printed = tomllib.loads(RECIPE), io.StringIO()
    with redirect_stdout(printed):
        trained = sojourn.train(table, out=tmp_path_factory.mktemp("api") / "run", progress=False)
    assert printed.getvalue() == ""
    return trained


def test_a_run_is_read_as_flat_records(run):
    steps = run.metrics()
    assert [(s["stage"], s["step"]) for s in steps] == [("warmup", 0), ("rl", 0)]
    assert run.metrics("rl") == steps[1:]
    assert [e["name"] for e in run.evaluations()] == ["before", "warmup", "rl"]
    assert 0 <= run.evaluations()[0]["success.mean"] <= 1
    played = run.episodes("rl")
    assert len(played) == 2
    everything = [*steps, *run.evaluations(), *run.episodes()]
    assert {type(v) for record in everything for v in record.values()} <= {str, int, float, bool, list, type(None)}
    assert run.episode(played[0]["id"]).id == played[0]["id"]
    assert run.config["name"] == "trained"
    assert sojourn.open(run.path).metrics() == steps


def test_progress_is_shown_where_it_is_wanted(tmp_path, capsys):  # and nothing by the fixture, without
    sojourn.train(GUESS, env=Guess, out=tmp_path / "shown")
    assert "rl 1/1" in capsys.readouterr().out


async def test_it_trains_and_answers_where_an_event_loop_runs(tmp_path):
    trained = sojourn.train(GUESS, env=Guess, seed=3, out=tmp_path / "run", progress=False)
    assert trained.config["seed"] == 3
    assert trained.config["env"]["name"] == "examples.guess:Guess"  # which any process can build
    with trained.policy() as policy:
        assert policy.play(0).trajectories[0].ending is Ending.TURNS


def test_the_policy_answers_plays_and_is_exported(run, tmp_path):
    with sojourn.load(run.path, greedy=True) as policy:
        said = policy.answer("Where?", max_tokens=4)
        assert said.role is Role.ASSISTANT
        assert policy.answer([Message(Role.USER, "Where?")], max_tokens=4) == said
        played = policy.play(1)
        assert played.error is None
        assert played.trajectories[0].turns
        with pytest.raises(ConfigError, match="task -1: the split 'test' has the tasks 0 to"):
            policy.play(-1)
        policy.export(tmp_path / "out")
    assert (tmp_path / "out" / "config.json").is_file()
    policy.close()  # a second time
    for used in (lambda: policy.answer("Where?"), lambda: policy.play(1)):
        with pytest.raises(ConfigError, match=r"this policy is closed: call sojourn\.load\('.*'\) again"):
            used()


def test_weights_are_chosen_by_name(run):
    with sojourn.load(f"{run.path}@before", greedy=True) as before, sojourn.load(run.path, greedy=True) as after:
        one, other = before._components.trainer, after._components.trainer
        assert any((a != b).any() for a, b in zip(weights(one), weights(other), strict=True))
    with pytest.raises(RecordError):
        sojourn.load("/nope")


def weights(trainer):
    return [parameter.detach() for parameter in trainer.model.parameters()]


def test_an_evaluation_is_returned(run):
    found = sojourn.evaluate(run.path, progress=False)
    assert found.overall.episodes == 2
    untrained = sojourn.evaluate(tomllib.loads(RECIPE), expert=True, progress=False, **{"evaluation.tasks": 3})
    assert untrained.overall.tasks == 3
    assert untrained.overall.malformed.mean == 0  # the expert says what can be read


def test_what_computes_more_slowly_than_it_could_is_said_from_python_too(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler")
    asked = {"evaluate": {}, "train": {"out": tmp_path / "run"}}
    for command, options in asked.items():
        getattr(sojourn, command)(GUESS, env=Guess, **options)
        assert capsys.readouterr().err.count("note: the kernels of backend 'torch' are not used") == 1, command
    sojourn.evaluate(GUESS, env=Guess, progress=False)
    assert capsys.readouterr().err == ""


def test_what_stops_a_training_is_raised_itself(tmp_path):
    """Not in a group of errors of the tasks that it ran in."""

    class Odd(Guess):
        def choices(self):
            return "north"

    with pytest.raises(InfrastructureError, match=r"choices\(\) gave 'north'"):
        sojourn.train(GUESS, env=Odd, out=tmp_path / "run", progress=False)


def test_numbers_of_numpy_are_numbers(tmp_path):
    numbers = {"seed": np.int64(3), "sampling.temperature": np.float32(1.0)}
    path = sojourn.train(GUESS, env=Guess, out=tmp_path / "run", progress=False, **numbers).path
    found = tomllib.loads((path / "config.toml").read_text())
    assert (found["seed"], found["sampling"]["temperature"]) == (3, 1.0)


@dataclass(frozen=True)
class Zero:
    """Credits nothing."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, groups, scores, streams):
        return [[Credit.uniform(trajectory, 0.0) for trajectory in group.trajectories] for group in groups]


class Counted:
    """A reward with memory, which no table describes."""

    def __init__(self):
        self.groups = 0

    def __call__(self, group):
        from sojourn.rewards.native import Native

        self.groups += 1
        return Native()(group)


def test_objects_are_passed_where_a_recipe_has_tables(tmp_path):
    stage = {**RL, "estimator": GRPO(scale_by_std=False), "losses": [PPO(clip_high=0.3)]}
    trained = sojourn.train(
        {**GUESS, "stages": [stage]}, env=Guess, curriculum=Shuffle, out=tmp_path / "run", progress=False
    )
    config = trained.config
    assert config["stages"][0]["estimator"] == {"name": "grpo", "scale_by_std": False, "epsilon": 1e-6}
    assert config["stages"][0]["losses"][0]["clip_high"] == 0.3
    assert config["curriculum"]["name"] == "shuffle"
    again = sojourn.train(
        {**GUESS, "stages": [{**RL, "estimator": Zero}]}, env=Guess, out=tmp_path / "b", progress=False
    )
    assert again.config["stages"][0]["estimator"]["name"] == f"{__name__}:Zero"
    assert np.isfinite(again.metrics()[0]["loss"])


def test_a_run_with_an_object_that_cannot_be_rebuilt_says_what_it_was_and_goes_on_here_alone(tmp_path):
    reward = Counted()
    trained = sojourn.train(GUESS, env=Guess, reward=reward, out=tmp_path / "run", progress=False)
    name = trained.config["reward"]["name"]
    assert name.startswith(f"passed:{__name__}.Counted#")
    resumed = [sys.executable, "-m", "sojourn", "train", "--resume", str(trained.path)]
    done = subprocess.run(resumed, capture_output=True, text=True)
    assert done.returncode != 0
    assert f"reward '{name}' was an object of the Python program" in done.stderr
    assert "sojourn.train(run, resume=True)" in done.stderr
    assert sojourn.train(trained.path, resume=True, reward=reward, progress=False).metrics() == trained.metrics()
    with pytest.raises(ConfigError, match="a resumed run keeps it"):
        sojourn.train(trained.path, resume=True, seed=4)
    with pytest.raises(ConfigError, match="give its folder, not a table"):
        sojourn.train(GUESS, resume=True)


def test_wrong_keys_are_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'seed'"):
        sojourn.train(GUESS, env=Guess, sead=3)
    with pytest.raises(ConfigError, match=r"complex is no reward"):
        sojourn.train(GUESS, env=Guess, reward=3.5j)


def test_the_names_are_there_without_torch():
    code = "import sys, sojourn as s; s.load, s.open, s.evaluate, s.train; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = sojourn.nope


@pytest.mark.parametrize("overrides", [{"model": None}, {"losses": [None]}])
def test_a_value_that_no_config_has_is_refused(overrides: dict[str, Any]):
    with pytest.raises(ConfigError, match="a config has no such value: leave the key out"):
        sojourn.train(GUESS, **overrides)
