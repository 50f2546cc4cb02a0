"""Runs that learn from a live service: which sessions a step trains on, what is offered, and a run that is resumed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from safetensors.numpy import load_file
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.live.gate import Gate, serving
from sojourn.live.store import LiveStore
from sojourn.record.episodes.store import EpisodeStore
from sojourn.train.releases import Releases
from tests.live_sessions import PASSES, RECIPE, kept, stage, summary


def recipe(folder, **changes):
    groups = {"poll_s": 0.01, "folder": str(folder / "sessions")}
    table = {
        "name": "live",
        **RECIPE,
        "record": {"checkpoint_every": 1},
        "release": PASSES,
        "stages": [stage(2, **groups)],
    }
    table |= changes
    path = folder / "train.toml"
    path.write_text(tomli_w.dumps(table))
    return str(path)


@pytest.fixture
def sessions(tmp_path):
    store = LiveStore(tmp_path / "sessions")
    for number in range(5):
        kept(store, f"s{number}", turns=2)
        store.add_feedback(f"s{number}", "f", number % 2, 1.0 if number % 2 else -1.0)
    yield store
    store.close()


def train(*arguments):
    done = CliRunner().invoke(app, ["train", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def weights(run):
    """Returns what a run offered at its end."""
    files = sorted((run / "live" / "releases" / "rl@2").rglob("*.safetensors"))
    assert files
    return {f"{path.name}/{name}": value for path in files for name, value in load_file(path).items()}


def test_each_step_trains_on_the_next_sessions_and_offers_what_passes(tmp_path, sessions):
    done = train(recipe(tmp_path), "--out", tmp_path / "run")
    assert [one.step for one in sorted(sessions.sessions())] == [0, 0, 1, 1, None]
    with EpisodeStore(tmp_path / "run") as store:
        groups = list(store.groups("rl"))
        assert [group.episodes[0].id for group in groups] == ["live-s0", "live-s1", "live-s2", "live-s3"]
        bodies = [[t.notes["request body"] for t in group.episodes[0].trajectories[0].turns] for group in groups]
        assert bodies == [[f"s{number}-0", f"s{number}-1"] for number in range(4)]
        assert [turn.reward for turn in groups[1].trajectories[0].turns] == [0.0, 1.0]
        assert groups[0].origin == "live"
    assert "before may serve, as release 0" in done
    assert "rl-1 may serve, as release 1" in done
    live = LiveStore(tmp_path / "run" / "live")
    assert [one.folder.name for one in live.releases()] == ["before@0", "rl-1@1", "rl@2"]
    assert all((one.folder).is_dir() for one in live.releases())
    live.close()


def test_sessions_that_are_too_old_are_not_trained_on_and_counted(tmp_path, sessions):
    """Five sessions wait; then the weights that serve change twice, and four more come."""
    for number in range(2):
        sessions.tell("serving", number, "better")
    for number in range(4):
        kept(sessions, f"t{number}", turns=1)
    sessions.tell("serving", 2, "better")
    groups = {"poll_s": 0.01, "folder": str(tmp_path / "sessions"), "max_age": 1}
    train(recipe(tmp_path, stages=[stage(2, **groups)]), "--out", tmp_path / "run")
    with EpisodeStore(tmp_path / "run") as store:
        assert [group.episodes[0].id for group in store.groups("rl")] == ["live-t0", "live-t1", "live-t2", "live-t3"]
    values = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [(line["sessions_too_old"], line["sessions_age"]) for line in values if line["stage"] == "rl"]
    assert found == [(5.0, 1.0), (5.0, 1.0)]


@pytest.mark.parametrize("value", ["-1", "0.5", "'two'"])
def test_an_age_that_is_none_is_refused(tmp_path, value):
    done = CliRunner().invoke(app, ["train", recipe(tmp_path), f"stages.rl.groups.max_age={value}", "--dry"])
    assert done.exit_code != 0
    assert "max_age" in f"{done.output} {done.exception}"


def test_weights_are_considered_once_and_each_decision_is_written_down(tmp_path):
    releases = Releases.of(Gate(margin=0.0), tmp_path)
    assert releases.consider("before", 0, summary(0.8), {}) == "before may serve, as release 0"
    assert releases.consider("before", 0, summary(0.8), {}) == "before was offered before"
    assert "rl-1 does not serve: success 50.0%" in releases.consider("rl-1", 1, summary(0.5), {})
    assert releases.consider("rl-2", 2, summary(0.95), {}) == "rl-2 may serve, as release 1"
    assert [(event.kind, event.release) for event in releases.store.events()] == [
        ("offered", 0),
        ("refused", None),
        ("offered", 1),
    ]
    assert [one.folder.name for one in releases.store.releases()] == ["before@0", "rl-2@2"]
    releases.close()


def test_an_offer_that_was_not_told_as_the_run_was_killed_is_told_when_it_goes_on(tmp_path, monkeypatch):
    """A service begins with the first that was told, and would wait for it for ever."""
    releases = Releases.of(Gate(), tmp_path)

    def killed(self, *events, of=None):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LiveStore, "add_events", killed)
        with pytest.raises(KeyboardInterrupt):
            releases.consider("before", 0, summary(0.8), {})
    assert len(releases.store.releases()) == 1
    for _ in range(2):
        assert releases.consider("before", 0, summary(0.8), {}) == "before was offered before"
        assert [(event.kind, event.release) for event in releases.store.events()] == [("offered", 0)]
    assert serving(releases.store).number == 0
    releases.close()


def test_releases_are_found_where_a_run_was_moved_or_copied_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    releases = Releases.of(Gate(), Path("run"))
    releases.consider("before", 0, summary(0.8), {})
    releases.close()
    shutil.copytree("run", "copy")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for run in (tmp_path / "run", tmp_path / "copy"):
        store = LiveStore(run / "live")
        assert [one.folder for one in store.releases()] == [run / "live" / "releases" / "before@0"]
        assert store.releases()[0].folder.is_dir()
        store.close()


def test_a_run_that_is_resumed_trains_on_the_same_sessions_at_the_same_steps(tmp_path, sessions):
    path = recipe(tmp_path)
    train(path, "--out", tmp_path / "whole")
    for key in ("s0", "s1", "s2", "s3"):
        assert sessions.session(key).step is not None
    with sessions._writing() as database:  # as if none had been taken
        database.execute("UPDATE sessions SET stage = NULL, step = NULL, place = NULL")
    train(path, "--out", tmp_path / "part", "stages.rl.steps=1")
    kept(sessions, "a-late-one", turns=2)
    train(tmp_path / "part", "--resume", "stages.rl.steps=2")
    with EpisodeStore(tmp_path / "whole") as whole, EpisodeStore(tmp_path / "part") as part:
        found = [
            [(g.episodes[0].id, [t.reward for t in g.trajectories[0].turns]) for g in store.groups("rl")]
            for store in (whole, part)
        ]
    assert found[0] == found[1]
    values = [weights(tmp_path / name) for name in ("whole", "part")]
    assert values[0].keys() == values[1].keys()
    for name in values[0]:
        np.testing.assert_array_equal(values[0][name], values[1][name])
