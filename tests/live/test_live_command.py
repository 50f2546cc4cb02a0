"""`sojourn live` from start to end: people are served, their sessions are trained on, and new weights serve."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing

import httpx
import pytest
import tomli_w
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.commands.live import _tell_end
from sojourn.commands.served_runs import unserved_note
from sojourn.errors import RecordError
from sojourn.live.service_lock import ServiceLock
from sojourn.live.store import LiveStore
from sojourn.serving.trainer_process import TrainerProcess
from sojourn.train.resolve import load
from tests.live_sessions import PASSES, RECIPE, kept, stage

TABLE = {"name": "chat", **RECIPE, "release": {**PASSES, "canary_share": 0.0}, "stages": [stage(3)]}
WAIT_S = 240.0  # for a loaded machine


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stages.rl.groups={name='slots'}", "no stage learns from the service"),
        ("evaluation.every=0", "expected a number of steps"),
        ("model.nme=tiny", "unknown key"),
    ],
)
def test_a_recipe_that_serves_nobody_is_refused_before_anything_starts(tmp_path, override, words):
    (tmp_path / "live.toml").write_text(tomli_w.dumps(TABLE))
    done = CliRunner().invoke(app, ["live", str(tmp_path / "live.toml"), override, "--out", str(tmp_path / "run")])
    assert done.exit_code != 0
    assert words in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_sessions_may_be_mixed_with_demonstrations(tmp_path):
    """What is refused then is what comes after the groups."""
    (tmp_path / "live.toml").write_text(tomli_w.dumps(TABLE))
    mixed = "stages.rl.groups={name='mixed', parts=[{name='live'}, {name='experts'}]}"
    losses = "stages.rl.losses=[{name='nll'}]"
    words = ["live", str(tmp_path / "live.toml"), mixed, losses, "evaluation.every=0", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, words)
    assert "expected a number of steps" in str(done.exception)


def test_without_a_table_release_or_with_a_folder_that_is_there_it_is_refused(tmp_path):
    bare = {key: value for key, value in TABLE.items() if key != "release"}
    (tmp_path / "bare.toml").write_text(tomli_w.dumps(bare))
    done = CliRunner().invoke(app, ["live", str(tmp_path / "bare.toml"), "--out", str(tmp_path / "run")])
    assert "add a table [release]" in str(done.exception)
    (tmp_path / "live.toml").write_text(tomli_w.dumps(TABLE))
    done = CliRunner().invoke(app, ["live", str(tmp_path / "live.toml"), "--out", str(tmp_path)])
    assert "there is such a folder" in str(done.exception)


def _in_background():
    """A shell that starts a command with & ignores SIGINT for it, and so do all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_people_are_served_and_their_feedback_is_trained_on(tmp_path):
    (tmp_path / "live.toml").write_text(tomli_w.dumps(TABLE))
    words = [sys.executable, "-m", "sojourn", "live", "live.toml", "--out", "run", "--port", "0", "--consent-given"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=_in_background,
    ) as it:  # fmt: skip
        try:
            base = next(line.split()[3] for line in it.stdout if line.startswith("OpenAI base URL")).removesuffix("/v1")
            with httpx.Client(base_url=base, timeout=60) as http:
                for name in ("ann", "bob"):
                    _talk(http, name)
                events = _until(http, lambda told: told["serving"] == 1)["events"]
                _talk(http, "cyn")
                second = CliRunner().invoke(app, ["live", str(tmp_path / "run"), "--resume", "--port", "0"])
                assert "the store of another service, which runs" in str(second.exception)
                answered = json.loads(http.get("/releases").text)["serving"]
            it.send_signal(signal.SIGINT)
            rest = it.stdout.read()
            assert it.wait(WAIT_S) == 0, rest
        finally:
            it.kill()
    assert [event["kind"] for event in events] == ["offered", "serving", "offered", "serving"]
    assert answered == 1
    log = (tmp_path / "run-training.log").read_text()
    assert "rl-1 may serve, as release 1" in log
    assert "stopped; `sojourn live run --resume` goes on from its last checkpoint" in log
    assert "nobody serves" not in log


def test_a_run_that_goes_on_while_nobody_serves_it_says_so(tmp_path):
    run, recipe = tmp_path / "run", tmp_path / "live.toml"
    recipe.write_text(tomli_w.dumps({**TABLE, "stages": [stage(1)]}))
    asking = threading.Thread(target=_sessions, args=(run / "live",))
    asking.start()
    assert CliRunner().invoke(app, ["train", str(recipe), "--out", str(run)]).exit_code == 0
    asking.join()
    done = CliRunner().invoke(app, ["train", str(run), "--resume", "stages.rl.steps=2"])
    assert done.exit_code == 0, done.output
    assert "nobody serves this run: it trains on the sessions that are kept, then waits for more" in done.output
    assert f"`sojourn live {run} --resume` serves it, too" in done.output
    with closing(ServiceLock(run / "live")) as service:
        service.take()
        assert unserved_note(load(run).recipe, run) == ""


def _sessions(folder):
    """Keeps sessions for two steps, as soon as there is a store for them."""
    while not (folder / "live.sqlite").exists():
        time.sleep(0.1)
    store = LiveStore(folder)
    for key in "abcd":
        kept(store, key)
    store.close()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (0, "sojourn live: the training has ended: it serves on, and learns no more\n"),
        (3, "sojourn live: the training ended with exit code 3: the disk is full; it serves on, and learns no more: "
            "end the service, mend that, and go on with --resume {}\n"),
    ],
)  # fmt: skip
async def test_it_says_at_once_that_the_training_has_ended(tmp_path, capsys, code, told):
    log = tmp_path / "training.log"
    log.write_text("the disk is full\n")
    words = [sys.executable, "-c", f"raise SystemExit({code})"]
    process = await asyncio.create_subprocess_exec(*words)
    with log.open("ab") as output:
        await _tell_end(TrainerProcess(process, output), tmp_path, log)
    assert capsys.readouterr().err == told.format(tmp_path)


def test_a_service_has_the_lock_of_its_store_until_it_ends(tmp_path):
    first, second = ServiceLock(tmp_path / "live"), ServiceLock(tmp_path / "live")
    first.take()  # there is no folder yet
    (tmp_path / "live").mkdir()
    for _ in range(2):
        first.take()
    with pytest.raises(RecordError, match="use that one, or end it first"):
        second.take()
    first.close()
    second.take()
    second.close()


def _talk(http, name):
    body = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}
    http.post(f"/s/{name}/v1/chat/completions", json=body).raise_for_status()
    assert http.post(f"/s/{name}/feedback", json={"value": 1}).json() == {"counts": True, "turn": 0}
    assert http.post(f"/s/{name}/end").json() == {"ended": True}


def _until(http, reached):
    ends = time.monotonic() + WAIT_S
    while time.monotonic() < ends:
        if reached(told := http.get("/releases").json()):
            return told
        time.sleep(0.2)
    raise AssertionError(f"not reached in {WAIT_S} s: {told}")
