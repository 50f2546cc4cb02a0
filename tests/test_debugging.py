"""An error in the user's world can be debugged: what failed is kept with its traceback, its task and its turns."""

import shlex
from pathlib import Path

import pytest
from spawned import sojourn
from starlette.testclient import TestClient
from test_failures import one_sentence, recipe

from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.run_status import State, read_status
from sojourn.view.server import application

WORLDS = """
import os
class Typo:
    '''Say go, twice.'''
    def __init__(self, seed: int): self.n, self.known = 0, {"ok": 1}
    def go(self) -> str:
        '''Goes.'''
        self.n += 1
        return "gone" if self.n < 2 else self.known["okk"]
    def reward(self): return 1.0 if self.n == 3 else None
    def expert(self): return "go()"
    def choices(self): return ["go()"]

class Sometimes(Typo):
    '''Say go, twice; every second expert fails.'''
    def __init__(self, seed: int):
        super().__init__(seed)
        self.seed, self.known = seed, {"ok": "", **({"okk": ""} if seed % 2 else {})}
    def go(self) -> str:
        '''Goes.'''
        return super().go()
    def reward(self): return 1.0 if self.n == 2 else None

class Later(Sometimes):
    '''Say go, twice; every second play fails once there is a file.'''
    def __init__(self, seed: int):
        super().__init__(seed)
        if not os.path.exists("broken"): self.known = {"ok": "", "okk": ""}
"""
CHOOSES = "agent={name='plain',choices=true}"


def run(folder: Path, world: str, *words: str):
    (folder / "worlds.py").write_text(WORLDS)
    (folder / "r.toml").write_text(recipe(world))
    return sojourn(folder, *words)


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """The folder and the output of a run whose world raises a KeyError at the second turn."""
    folder = tmp_path_factory.mktemp("failed")
    return folder, run(folder, "Typo", "train", "r.toml", CHOOSES)


def test_the_sentence_names_the_line_and_the_run_names_the_commands_that_show_and_play_it(failed):
    folder, done = failed
    told = one_sentence(done)
    assert "KeyError: 'okk'" in told
    assert f"(go, {folder / 'worlds.py'}:9)" in told
    (path,) = folder.glob("runs/*")
    (shown,) = [line for line in done.stdout.splitlines() if line.startswith("to see where it failed: sojourn ")]
    (again,) = [line for line in done.stdout.splitlines() if line.startswith("to play that task again: sojourn ")]
    seen = sojourn(folder, *shown.partition(": sojourn ")[2].split())
    assert "Traceback (most recent call last)" in seen.stdout
    assert 'self.known["okk"]' in seen.stdout
    assert "turn 2" in seen.stdout
    played = sojourn(folder, *again.partition(": sojourn ")[2].split(), "--expert")
    assert played.returncode == 2
    assert "KeyError: 'okk'" in played.stderr
    assert read_status(path).state is State.FAILED


def test_a_failed_episode_is_recorded_with_its_turns_its_ending_and_its_traceback(failed):
    folder, _ = failed
    (path,) = folder.glob("runs/*")
    with EpisodeStore(path) as store:
        rows = list(store.query(failed=True))
        record = store.read(rows[0])
    assert {(row.stage, row.turns, row.ending) for row in rows} == {("evaluation-before", 2, "failed")}
    (trajectory,) = record.episode.trajectories
    assert [turn.message.text for turn in trajectory.turns] == ["go()"] * 2
    assert record.scores == ()
    assert "known[" in record.episode.traceback


def test_demonstrations_that_fail_are_recorded_beside_those_that_are_imitated(tmp_path):
    done = run(tmp_path, "Sometimes", "train", "r.toml")
    (path,) = tmp_path.glob("runs/*")
    with EpisodeStore(path) as store:
        rows = list(store.query(stage="warmup"))
    assert {row.error is None for row in rows} == {True, False}, done.stdout + done.stderr
    assert {row.origin for row in rows} == {"experts"}


def test_the_viewer_shows_the_traceback_and_the_command_that_plays_the_task_again(failed):
    folder, _ = failed
    (path,) = folder.glob("runs/*")
    with EpisodeStore(path) as store:
        row = next(iter(store.query(failed=True)))
    client = TestClient(application([path.parent]), base_url="http://127.0.0.1")
    page = client.get(f"/runs/{path.name}/episodes/{row.id}").text
    assert "Traceback (most recent call last)" in page
    assert f"sojourn play {path} --task {row.task}" in page


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """The folder and the output of an evaluation of a run whose world broke after it was trained."""
    folder = tmp_path_factory.mktemp("evaluated")
    trained = run(folder, "Later", "train", "r.toml", CHOOSES, "--out", "run")
    assert trained.returncode == 0, trained.stderr
    (folder / "broken").touch()
    return folder, sojourn(folder, "eval", "run", "--expert")


def test_what_fails_in_an_evaluation_of_a_run_is_recorded_with_its_turns_and_traceback(evaluated):
    folder, done = evaluated
    assert done.returncode == 0, done.stderr
    with EpisodeStore(folder / "run") as store:
        (row,) = store.query(failed=True)
        record = store.read(row)
    assert (row.stage, row.step, row.turns, row.ending) == ("evaluation", 4, 2, "failed")
    assert "known[" in record.episode.traceback
    assert f"to see where it failed: sojourn show run {row.id}\n" in done.stdout
    assert f"to play that task again: sojourn play run --task {row.task}\n" in done.stdout
    shown = sojourn(folder, "show", "run").stdout
    assert "1 x KeyError: 'okk'" in shown
    assert "to read one: sojourn show run --find error:any" in shown
    assert row.id in sojourn(folder, "show", "run", "--find", "error:any").stdout
    client = TestClient(application([folder / "run"]), base_url="http://127.0.0.1")
    assert f"/runs/run/episodes/{row.id}" in client.get("/runs/run").text
    assert "Traceback (most recent call last)" in client.get(f"/runs/run/episodes/{row.id}").text


def test_a_later_evaluation_replaces_what_failed_in_an_earlier_one_and_leaves_a_run_alone_that_is_written(evaluated):
    folder, _ = evaluated
    with RunFolder.open(folder / "run"):
        done = sojourn(folder, "eval", "run", "--expert", "evaluation.tasks=4")
    assert "note: the failed episodes are not recorded: run is being written by process" in done.stdout
    assert "Traceback (most recent call last)" in done.stdout
    assert "to play that task again: sojourn play run evaluation.tasks=4 --split test --task " in done.stdout
    for count, failed in ((4, 2), (2, 1)):
        sojourn(folder, "eval", "run", "--expert", f"evaluation.tasks={count}")
        with EpisodeStore(folder / "run") as store:
            assert len(list(store.query(stage="evaluation"))) == failed


def test_what_fails_in_an_evaluation_of_a_recipe_is_told_with_its_traceback(tmp_path):
    done = run(tmp_path, "Typo", "eval", "r.toml", CHOOSES, "evaluation.tasks=1")
    assert done.returncode == 2
    assert "KeyError: 'okk'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert 'self.known["okk"]' in done.stdout
    (again,) = [line for line in done.stdout.splitlines() if line.startswith("to play that task again: sojourn ")]
    played = sojourn(tmp_path, *shlex.split(again.partition(": sojourn ")[2]), "--expert")
    assert played.returncode == 2
    assert "KeyError: 'okk'" in played.stderr
    assert not list(tmp_path.glob("runs/*"))
