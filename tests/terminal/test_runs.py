"""The list of runs: what each row says, at any width, damaged folders included; and where two runs differ."""

from __future__ import annotations

import fcntl
import json
import threading

import pytest
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.errors import RecordError
from sojourn.record.run import RunFolder
from sojourn.record.run_status import FAILURE, State, locked, read_status
from sojourn.terminal import runs
from tests.terminal.conftest import CONFIG, make, printed


def shown(folder, width=80, **filters) -> str:
    return printed(runs.table(runs.find_runs([folder], **filters), width), width)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_a_row_is_whole_at_every_width(run, width):
    text = shown(run.parent, width)
    for told in ("made-1", "finished", "rl 4/4", "50% [5–95]"):
        assert told in text
    assert "…" not in text
    assert ("baseline, small" in text) == (width >= 80)
    assert ("75% [41–93]" in text) == (width >= 80)


def test_a_name_that_leaves_no_room_stands_above_its_row(run):
    long = run.rename(run.with_name("made-" + "of-many-words-" * 4 + "1"))
    text = shown(long.parent).splitlines()
    assert text[2] == long.name
    assert text[3].split()[0] == "finished"


def test_states(run, tmp_path):
    assert read_status(run).state is State.FINISHED
    half = make(tmp_path / "half", stages=1)
    assert read_status(half).state is State.STOPPED
    (half / FAILURE).write_text(json.dumps({"cause": "the world was closed"}))
    assert (read_status(half).state, read_status(half).cause) == (State.FAILED, "the world was closed")
    assert "the world was closed" in shown(half)
    with RunFolder.open(half):
        assert locked(half)
        assert read_status(half).state is State.RUNNING
    assert not locked(half)


def test_looking_at_a_lock_keeps_nobody_from_it(run):
    with (run / "lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)  # as `locked` does for a moment
        released = threading.Timer(0.5, lambda: fcntl.flock(looking, fcntl.LOCK_UN))
        released.start()
        RunFolder.open(run).close()
        released.join()


def test_filters_that_leave_nothing_say_what_there_is(run):
    def told(*words):
        return " ".join(CliRunner().invoke(app, ["runs", str(run.parent), *words]).output.split())

    assert told("--tag", "smal").endswith("has the tag 'smal': the tags there are baseline, small")
    assert told("--name", "other").endswith("has a name that contains 'other': the newest are made-1")


def test_filters_by_name_and_tag(run):
    make(run.parent / "other-2", CONFIG.replace('"small"', '"large"'))
    assert [r.name for r in runs.find_runs([run.parent], name="OTHER")] == ["other-2"]
    assert [r.name for r in runs.find_runs([run.parent], tag="small")] == ["made-1"]
    assert len(runs.find_runs([run.parent], tag="baseline")) == 2
    with pytest.raises(RecordError, match="no folder"):
        runs.find_runs([run.parent / "absent"])


@pytest.mark.parametrize("name", ["evaluations.json", "metrics.jsonl", "config.toml"])
def test_a_damaged_run_says_so_and_does_not_hide_the_others(run, name):
    bad = make(run.parent / "bad")
    (bad / name).unlink()
    (bad / name).mkdir()
    if name == "config.toml":
        (bad / "config.toml").rmdir()
        (bad / "config.toml").write_text("= not toml")
    text = shown(run.parent)
    assert "made-1  finished" in text
    assert f"runs/bad/{name}" in "".join(text.split())


def test_differences_are_by_key(run):
    config = CONFIG.replace("max_lag = 1", "max_lag = 2").replace("seed = 3", "seed = 4")
    other = make(run.parent / "other", config + 'folder = "elsewhere"\n')
    found = {d.key: (d.old, d.new) for d in runs.differences(run, other)}
    assert found == {
        "stages.rl.groups.max_lag": ("1", "2"),
        "seed": ("3", "4"),
        "record.folder": (None, '"elsewhere"'),
    }
    text = printed(runs.difference_table(run, other), 80)
    assert "stages.rl.groups.max_lag = 1 -> 2" in text
    assert "These runs have the same configuration" in printed(runs.difference_table(run, run), 80)


def test_the_command_for_scripts(run):
    done = CliRunner().invoke(app, ["runs", str(run.parent), "--json"])
    (told,) = json.loads(done.stdout)
    assert (told["name"], told["state"], told["done"], told["total"]) == ("made-1", "finished", 6, 6)
    assert told["evaluations"][-1]["summary"]["overall"]["success"]["mean"] == 0.5
    done = CliRunner().invoke(app, ["runs", str(run), "--diff"])
    assert "compares two runs" in str(done.exception)


def test_a_config_of_other_types_is_shown_all_the_same(run):
    text = (run / "config.toml").read_text()
    for tags in ("5", "'baseline'", "[[1], {a = 2}]", "{a = 1}"):
        (run / "config.toml").write_text(text.replace('["baseline", "small"]', tags).replace("seed = 3", "seed = [1]"))
        assert runs.find_runs([run])[0].name == "made-1"
        printed(runs.table(runs.find_runs([run]), 80), 80)
