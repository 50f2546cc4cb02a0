"""Sessions that people take back after training took them are gone from the run, which goes on."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.errors import RecordError
from sojourn.live.removal import carry_out, carry_out_alone
from sojourn.live.store import LiveStore
from sojourn.record import checkpoint
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.sources.live import Live, LiveGroups
from sojourn.sources.mixed import MixedGroups
from sojourn.sources.replay import Replay, ReplayBuffer
from sojourn.types import Group
from tests.live_sessions import PASSES, RECIPE, kept, stage

REPLAYS = {
    "groups": {
        "name": "mixed",
        "parts": [
            {"name": "live", "width": 2, "poll_s": 0.01},
            {"name": "replay", "width": 2, "origins": ["live"], "signal_only": False},
        ],
    },
    "estimator": {"name": "constant"},
    "losses": [{"name": "nll"}],
}


def recipe(folder: Path, steps: int, **changes) -> str:
    table = {
        "name": "live",
        **RECIPE,
        "record": {"checkpoint_every": 1, "drift_groups": 0},
        "release": PASSES,
        "stages": [{**stage(steps, poll_s=0.01), **changes}],
    }
    path = folder / "train.toml"
    path.write_text(tomli_w.dumps(table))
    return str(path)


def train(*arguments) -> str:
    done = CliRunner().invoke(app, ["train", *map(str, arguments)])
    assert done.exit_code == 0, f"{done.output} {done.exception!r}"
    return done.output


@pytest.fixture
def run(tmp_path):
    """The folder of a run, before it begins, with sessions to train on."""
    run = tmp_path / "run"
    store = LiveStore(run / "live")
    for number in range(8):
        kept(store, f"s{number}", turns=2)
        store.add_feedback(f"s{number}", "f", 0, 1.0)
    store.close()
    sessions = tmp_path / "sessions"
    (run / "live").rename(sessions)
    run.rmdir()
    return run


def begun(run: Path, steps: int, **changes) -> LiveStore:
    """Trains a run on the sessions; returns its service's store."""
    groups = changes.get("groups", {"name": "live", "width": 2, "poll_s": 0.01})
    for part in groups.get("parts", [groups]):
        if part["name"] == "live":
            part["folder"] = str(run.parent / "sessions")
    train(recipe(run.parent, steps, **{**changes, "groups": groups}), "--out", run)
    return LiveStore(run.parent / "sessions")


def holding(folder: Path, text: str) -> list[str]:
    found = [path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
    for path in folder.rglob("tokens/*.npz"):
        with np.load(path) as file:
            found += [f"{path.name}:{name}" for name in file.files if text.encode() in file[name].tobytes()]
    return found


def ids(run: Path) -> list[str]:
    with EpisodeStore(run) as episodes:
        return [row.id for row in episodes.query(stage="rl")]


def test_what_is_taken_back_is_gone_from_the_run_and_its_measurements_stay(run):
    store = begun(run, 2)
    metrics = (run / "metrics.jsonl").read_text()
    assert holding(run, "s1-0")
    store.forget(key="s1")
    store.forget(key="s5")  # which training had not taken
    assert [(one.stage, one.step) for one in store.removals()] == [("rl", 0)]
    assert "s1" not in json.dumps([one.digest for one in store.removals()])
    with EpisodeStore(run, write=True) as episodes:
        assert carry_out(store, episodes, all_recorded=True) == ["live-s1"]
    assert store.removals() == []
    assert ids(run) == ["live-s0", "live-s2", "live-s3"]
    assert holding(run, "s1-0") == holding(run, "live-s1") == []
    assert (run / "metrics.jsonl").read_text() == metrics
    store.close()


def test_neither_export_nor_replay_nor_show_has_it_any_more(run, tmp_path):
    store = begun(run, 1)
    store.forget(key="s1")
    with EpisodeStore(run, write=True) as episodes:
        carry_out(store, episodes, all_recorded=True)
    store.close()
    for format in ("prov", "adp", "chat"):
        out = tmp_path / f"out-{format}"
        words = ["export", str(run), "--format", format, "--where", "stage:rl", "--out", str(out)]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        files = [out] if out.is_file() else [path for path in out.rglob("*") if path.is_file()]
        text = " ".join(path.read_text() for path in files)
        assert "live-s0" in text
        assert "s1-0" not in text
        assert "live-s1" not in text
    for command in ("show", "replay"):
        done = CliRunner().invoke(app, [command, str(run), "live-s1"])
        assert done.exit_code != 0
        assert "live-s1" in f"{done.output} {done.exception}"


def test_what_is_in_a_step_that_is_being_recorded_is_removed_once_it_is(run, tmp_path):
    store = LiveStore(tmp_path / "sessions")
    with EpisodeStore(tmp_path / "run", write=True) as episodes:
        groups = LiveGroups(Live(width=2, poll_s=0.01), store, episodes, "rl")
        taken = asyncio.run(groups.take(0))
        store.forget(key="s0")
        assert carry_out(store, episodes) == []
        assert len(store.removals()) == 1
        episodes.append("rl", 0, taken)
        again = asyncio.run(groups.take(1))  # training carries it out before it takes others
        assert [row.id for row in episodes.query()] == ["live-s1"]
        assert len(store.removals()) == 1  # step 1 may replay it, and is not recorded yet
        assert groups.metrics()["sessions_removed"] == 1
        store.forget(key=again[0].task.data["session"])
        episodes.append("rl", 1, [Group(1, again[1].task, again[1].episodes)])  # it was in no record after all
        assert len(store.removals()) == 2
        episodes.append("rl", 2, asyncio.run(groups.take(2)))
        carry_out(store, episodes)
        assert store.removals() == []
    store.close()


def test_a_run_is_resumed_after_a_removal_at_the_step_that_it_was_killed_in(run):
    """The step is in no checkpoint; what was taken back before the run went on is trained on no more."""
    store = begun(run, 2)
    for folder in sorted((run / "checkpoints").iterdir()):
        if folder.name.endswith("2"):
            for path in sorted(folder.rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
            folder.rmdir()
    store.forget(key="s0")
    store.forget(key="s3")
    train(run, "--resume", "stages.rl.steps=3")
    assert ids(run) == ["live-s1", "live-s2", "live-s4", "live-s5"]
    assert [one.step for one in store.removals() if one.step < 1] == []
    assert holding(run, "s0-0") == holding(run, "s3-0") == []
    store.close()


def test_what_is_removed_is_replayed_no_more_and_a_run_that_may_replay_it_goes_on(run):
    store = begun(run, 3, **REPLAYS)
    with EpisodeStore(run) as episodes:
        assert [row.origin for row in episodes.query(stage="rl")] == ["live"] * 6
    store.forget(key="s0")
    store.forget(key="s1")
    store.forget(key="s2")
    train(run, "--resume", "stages.rl.steps=4")
    values = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["replayed"] for line in values if line["stage"] == "rl"] == [0.0, 0.0, 2.0, 1.0]
    buffer = checkpoint.latest(run / "checkpoints").state()["parts"]["groups"]["1"]
    assert buffer["step"].tolist() == [1, 2, 2, 3, 3]
    assert holding(run, "s0-0") == []
    store.close()


def test_where_nothing_trains_the_service_removes_it_and_where_something_does_it_may_not(run):
    store = begun(run, 1)
    own = LiveStore(run / "live")
    kept(own, "mine")
    assert own.take("rl", 0, 1)
    own.forget(key="mine")
    with RunFolder.open(run), pytest.raises(RecordError, match="is being written by"):
        carry_out_alone(run)
    assert len(own.removals()) == 1
    assert carry_out_alone(run) == []
    assert own.removals() == []
    assert carry_out_alone(run) == []
    own.close()
    store.close()


def test_sessions_that_are_too_old_are_removed_from_the_run_as_well(run):
    store = begun(run, 1)
    assert sorted(store.expire(-1)) == [f"s{number}" for number in range(8)]
    with EpisodeStore(run, write=True) as episodes:
        assert carry_out(store, episodes, all_recorded=True) == ["live-s0", "live-s1"]
    store.close()


def test_a_session_that_is_taken_back_while_a_step_takes_it_is_not_trained_on(tmp_path, monkeypatch):
    store = LiveStore(tmp_path / "sessions")
    for key in ("a", "b", "c"):
        kept(store, key)
    take = LiveStore.take

    def take_and_lose(self, *arguments):
        found = take(self, *arguments)
        store.forget(key="a")
        return found

    monkeypatch.setattr(LiveStore, "take", take_and_lose)
    with EpisodeStore(tmp_path / "run", write=True) as episodes:
        groups = LiveGroups(Live(width=1, poll_s=0.01), LiveStore(tmp_path / "sessions"), episodes, "rl")
        [group] = asyncio.run(groups.take(0))
        assert group.episodes[0].id == "live-b"
        asyncio.run(groups.close())
    store.close()


def test_what_is_taken_back_while_a_step_replays_it_does_not_come_back_with_that_step(tmp_path):
    store = LiveStore(tmp_path / "sessions")
    for number in range(8):
        kept(store, f"s{number}")
    with EpisodeStore(tmp_path / "run", write=True) as episodes:
        groups = LiveGroups(Live(width=1, poll_s=0.01), store, episodes, "rl")
        first = asyncio.run(groups.take(0))
        episodes.append("rl", 0, first)
        replayed = [*asyncio.run(groups.take(1)), replace(first[0], slot=1, origin="replay")]
        store.forget(key="s0")
        taken = asyncio.run(groups.take(2))  # step 1 is still being trained
        episodes.append("rl", 1, replayed)
        episodes.append("rl", 2, taken)
        for step in range(3, 6):
            episodes.append("rl", step, asyncio.run(groups.take(step)))
        assert [row.id for row in episodes.query()] == [f"live-s{number}" for number in range(1, 6)]
        assert store.removals() == []
    assert holding(tmp_path / "run", "s0-0") == []
    store.close()


async def test_what_is_replayed_is_chosen_once_the_sessions_of_a_step_are_there(tmp_path):
    """A step may wait for sessions for hours; what people take back meanwhile is replayed no more."""
    order = []

    class Waits(LiveGroups):
        async def take(self, step):
            await asyncio.sleep(0.01)
            order.append("live")
            return ["session"]

    class Replays(ReplayBuffer):
        async def take(self, step):
            order.append("replay")
            return ["replayed"]

    live, replay = Waits(Live(), LiveStore(tmp_path), None, "rl"), Replays(Replay(), None, "rl")
    assert await MixedGroups((replay, live)).take(0) == ["replayed", "session"]
    assert order == ["live", "replay"]
