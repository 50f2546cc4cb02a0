"""A learner whose candidates are refused again and again continues from the release that serves, also after a kill."""

import json
import shutil

import numpy as np
import pytest
import tomli_w
from safetensors.numpy import load_file
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.live.gate import FREEZE, REFUSED, RETURNED, Gate
from sojourn.live.store import LiveStore
from sojourn.train.releases import Releases
from sojourn.train.stage_learners import StageLearners
from tests.live_sessions import PASSES, RECIPE, kept, stage, summary

STEPS = 6
GATE = {**PASSES, "margin": 0.0, "refused_limit": 2}
LARGE = {
    "optim": {"lr": 0.01, "schedule": {"name": "constant", "warmup": 3}},
    "streams": [{"name": "ref_logprobs"}],
    "losses": [{"name": "ppo"}, {"name": "kl"}],
}


class Killed(BaseException):
    """Ends the program at once, as a kill does: nothing in it expects this."""


def train(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)], catch_exceptions=False)


def kinds(run):
    store = LiveStore(run / "live")
    found = [(event.kind, event.release) for event in store.events()]
    store.close()
    return found


def recipe(folder, *stages):
    """Writes a recipe whose stages learn from sessions that have ended, and returns its path."""
    sessions = LiveStore(folder / "sessions")
    for number in range(2 * STEPS):
        kept(sessions, f"s{number:02}", turns=2)
        sessions.add_feedback(f"s{number:02}", "f", number % 2, 1.0 if number % 3 else -1.0)
    sessions.close()
    table = {"name": "live", **RECIPE, "record": {"checkpoint_every": 1, "keep": 9}, "release": GATE}
    chosen = [
        stage(steps, poll_s=0.01, folder=str(folder / "sessions")) | LARGE | {"name": name} for name, steps in stages
    ]
    path = folder / "train.toml"
    path.write_text(tomli_w.dumps(table | {"stages": chosen}))
    return path


def make_unreachable(store):
    """Makes the panel of what was offered such that no candidate is as good."""
    panel = json.dumps({"success": 1.0, "success_low": 1.0, "malformed": 0.0, "tokens": 1.0})
    with store._writing() as database:
        database.execute("UPDATE releases SET panel = ?", (panel,))


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Returns a run after its first step."""
    folder = tmp_path_factory.mktemp("begun")
    train(recipe(folder, ("rl", 1)), "--out", folder / "run")
    store = LiveStore(folder / "run" / "live")
    make_unreachable(store)
    store.close()
    return folder


def copied(begun, folder, name):
    """Returns a copy of the run as it was after the first step; the steps of all copies take the same sessions."""
    shutil.copytree(begun / "run", folder / name)
    return folder / name


def resumed(run, *more):
    return train(run, "--resume", f"stages.rl.steps={STEPS}", *more)


def saved(run, step=STEPS):
    """Returns what the last checkpoint has: the weights, those of the reference, moments, and the trainer's counts."""
    last = run / "checkpoints" / f"step-{step:06}"
    arrays = {
        f"{path.name}/{name}": value
        for path in sorted((last / "weights").glob("*.safetensors"))
        for name, value in load_file(path).items()
    }
    return arrays, json.loads((last / "state.json").read_text())["parts"]["trainer"]


@pytest.fixture(scope="module")
def whole(begun, tmp_path_factory):
    run = copied(begun, tmp_path_factory.mktemp("whole"), "run")
    return run, resumed(run).output


def test_after_so_many_refusals_the_learner_continues_from_what_serves_as_at_the_beginning_of_a_stage(whole):
    run, output = whole
    refused, returned = (REFUSED, None), (RETURNED, 0)
    assert kinds(run)[2:] == [refused, refused, returned, refused, refused, returned, refused]
    said = " ".join(output.split())
    assert "2 candidates in a row were refused, the last one rl-3: the learner continues from release 0" in said
    arrays, trainer = saved(run)
    release = load_file(run / "live" / "releases" / "before@0" / "weights.safetensors")
    reference = {name: value for name, value in arrays.items() if name.startswith("reference")}
    assert len(reference) == len(release)
    for name, value in release.items():
        np.testing.assert_array_equal(reference[f"reference.safetensors/{name}"], value)
    assert trainer == {"version": STEPS + 2, "step": 1}  # it went back twice, the last time one step before


def killed_at(point, monkeypatch):
    """Makes the program end at a point of the step after which the learner goes back first, or of the next one."""
    consider, go_back, refuse = Releases.consider, StageLearners.go_back, Releases._refuse

    def considering(self, name, *rest):
        said = consider(self, name, *rest)
        if (name, point) in {("rl-3", "when it is decided"), ("rl-4", "in the step after that")}:
            raise Killed
        return said

    def refusing(self, name, *rest):
        if name == "rl-3" and point == "before it is decided":
            raise Killed
        return refuse(self, name, *rest)

    async def going(self, folder):
        if point == "before it goes back":
            raise Killed
        await go_back(self, folder)
        if point == "when it went back":
            raise Killed

    monkeypatch.setattr(Releases, "consider", considering)
    monkeypatch.setattr(Releases, "_refuse", refusing)
    monkeypatch.setattr(StageLearners, "go_back", going)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    "point",
    [
        "before it is decided",
        "when it is decided",
        "before it goes back",
        "when it went back",
        "in the step after that",
    ],
)
def test_a_run_that_is_killed_and_resumed_goes_back_at_the_same_step_bit_for_bit(
    begun, whole, tmp_path, monkeypatch, point, every
):
    run, more = copied(begun, tmp_path, "run"), f"record.checkpoint_every={every}"
    with monkeypatch.context() as patched:
        killed_at(point, patched)
        with pytest.raises(Killed):
            resumed(run, more)
    resumed(run, more)
    assert_same(run, whole[0])


def assert_same(run, other, step=STEPS):
    assert kinds(run) == kinds(other)
    (arrays, trainer), (others, other_trainer) = saved(run, step), saved(other, step)
    assert trainer == other_trainer
    assert arrays.keys() == others.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(value, others[name])


def test_what_is_decided_at_the_end_holds_when_the_run_is_given_more_steps(begun, whole, tmp_path):
    run = copied(begun, tmp_path, "run")
    train(run, "--resume", f"stages.rl.steps={STEPS - 1}")
    assert kinds(run)[-1] == (RETURNED, 0)
    resumed(run)
    assert_same(run, whole[0])


def test_what_is_decided_at_the_end_of_a_stage_holds_for_the_next_one(tmp_path, monkeypatch):
    path = recipe(tmp_path, ("rl", 2), ("then", 1))
    consider = Releases.consider
    killing = False

    def considering(self, name, *rest):
        said = consider(self, name, *rest)
        if name == "before":
            make_unreachable(self.store)
        if name == "rl" and killing:
            raise Killed
        return said

    monkeypatch.setattr(Releases, "consider", considering)
    train(path, "--out", tmp_path / "whole")
    refused = (REFUSED, None)
    assert kinds(tmp_path / "whole")[1:] == [refused, refused, (RETURNED, 0), refused]
    release = load_file(tmp_path / "whole" / "live" / "releases" / "before@0" / "weights.safetensors")
    arrays, _ = saved(tmp_path / "whole", 3)
    for name, value in release.items():
        np.testing.assert_array_equal(arrays[f"reference.safetensors/{name}"], value)
    killing = True
    with pytest.raises(Killed):
        train(path, "--out", tmp_path / "part")
    killing = False
    train(tmp_path / "part", "--resume")
    assert_same(tmp_path / "part", tmp_path / "whole", 3)


def test_an_offer_begins_the_count_anew_and_what_is_frozen_does_not_count(tmp_path):
    releases = Releases.of(Gate(margin=0.0, refused_limit=2), tmp_path)
    releases.consider("before", 0, summary(0.8), {})
    for step, success in enumerate([0.5, 0.95, 0.5], 1):
        releases.consider(f"rl-{step}", step, summary(success), {})
    (tmp_path / "live" / FREEZE).touch()
    releases.consider("rl-4", 4, summary(0.5), {})
    (tmp_path / "live" / FREEZE).unlink()
    assert [event.kind for event in releases.store.events()].count(RETURNED) == 0
    releases.consider("rl-5", 5, summary(0.5), {})
    assert [releases.back_to("rl", step) is not None for step in range(1, 6)] == [False] * 4 + [True]
    assert releases.back_to("rl", 5).name == "before@0"
    again = "rl-5 was refused before: success 50.0%"
    assert releases.consider("rl-5", 5, summary(0.5), {}).startswith(again)
    assert [event.kind for event in releases.store.events()].count(RETURNED) == 1
    releases.close()


def test_with_a_limit_of_0_the_learner_never_goes_back(tmp_path):
    releases = Releases.of(Gate(margin=0.0, refused_limit=0), tmp_path)
    for step, success in enumerate([0.8] + [0.1] * 20):
        releases.consider(f"rl-{step}", step, summary(success), {})
    assert {event.kind for event in releases.store.events()} == {"offered", REFUSED}
    releases.close()
