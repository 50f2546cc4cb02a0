"""A pipe, a socket or a device in the place of a file is told of and never waited for; huge files are refused."""

import itertools
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from spawned import sojourn

from sojourn import files
from sojourn.config import toml
from sojourn.errors import ConfigError, RecordError
from sojourn.record import checkpoint, metrics
from sojourn.record.episodes import vocabulary
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.run_status import locked, read_status

FILES = (
    "config.toml", "versions.json", "seeds.json", "metrics.jsonl", "evaluations.json", "failure.json", "lock",
    "episodes.sqlite", "episodes.sqlite-wal", "vocabulary.json", "tokens/rl-000000-0.npz",
)  # fmt: skip


def test_only_regular_files_are_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("socket")  # the path of a socket has 107 bytes at most
    listening.close()
    assert files.read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="it holds more than 4 bytes"):
        files.read_bytes(tmp_path / "file", 4)
    for name, told in {
        "pipe": "a named pipe",
        "zero": "a device",
        "socket": "No such device",
        ".": "directory",
    }.items():
        with pytest.raises(OSError, match=told):
            files.read_bytes(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        files.open_regular(tmp_path / "absent")


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def put_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_a_run_is_waited_for_by_no_reader(run, name):
    """In a process of its own, which a test can end."""
    put_pipe(run / name)
    code = """
import json, pathlib, sys, warnings
from sojourn.errors import SojournError
from sojourn.record import checkpoint, metrics
from sojourn.record.episodes import vocabulary
from sojourn.record.run import RunFolder
from sojourn.record.run_status import read_status
from sojourn.record.episodes.store import EpisodeStore
from sojourn.terminal import run as overview, runs, find
warnings.simplefilter("ignore")
run = pathlib.Path(sys.argv[1])
def read_all():
    with EpisodeStore(run) as store:
        list(store.records("rl"))
        store.search("reward:>=0")
for read in (
    lambda: read_status(run), lambda: runs.table(runs.find_runs([run.parent]), 80),
    lambda: overview.overview(run, 80, ""),
    lambda: list(metrics.read(run / "metrics.jsonl")), lambda: metrics.last(run / "metrics.jsonl"),
    lambda: vocabulary.read(run), lambda: RunFolder.read(run).evaluations(), lambda: RunFolder.open(run).close(),
    lambda: EpisodeStore(run, write=True).close(), lambda: metrics.Jsonl(run / "metrics.jsonl").close(), read_all,
):
    try:
        read()
    except SojournError as error:
        assert str(run) in str(error), error
print("done")
"""
    command = [sys.executable, "-c", code, str(run)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.stdout == "done\n", done.stderr


def test_a_pipe_is_told_of(run):
    put_pipe(run / "metrics.jsonl")
    with pytest.raises(RecordError, match="named pipe"):
        list(metrics.read(run / "metrics.jsonl"))
    assert any("named pipe" in told for told in read_status(run).missing)
    put_pipe(run / "lock")
    assert not locked(run)
    put_pipe(run / "vocabulary.json")
    with pytest.raises(RecordError, match="named pipe"):
        vocabulary.read(run)


def test_a_pipe_in_a_checkpoint_is_damage(run):
    newest = checkpoint.checkpoints(run / "checkpoints")[-1]
    for name in ("state.json", "state.npz", "checkpoint.json"):
        kept = (newest.path / name).read_bytes()
        put_pipe(newest.path / name)
        with pytest.raises(RecordError, match="damaged"):
            newest.verify()
        (newest.path / name).unlink()
        (newest.path / name).write_bytes(kept)
    newest.verify()


def test_a_pipe_for_a_recipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    done = sojourn(tmp_path, "train", "pipe.toml", "--dry")
    assert (done.returncode, done.stdout) == (2, "")
    assert "named pipe" in done.stderr


def test_a_config_without_measure_is_refused(tmp_path):
    file = tmp_path / "many.toml"
    file.write_text("".join(f"key{number} = {number}\n" for number in range(toml.MAX_VALUES + 1)))
    with pytest.raises(ConfigError, match="it holds 20,001 values: expected at most 20,000"):
        toml.read(file)
    with RunFolder.create(tmp_path / "run", "name = 'made'\n") as made:
        shutil.copy(file, made.path / "config.toml")
        with pytest.raises(RecordError, match="20,001 values"):
            _ = made.config
    file.write_text("a = '" + "x" * toml.MAX_CHARACTERS + "'\n")
    with pytest.raises(ConfigError, match="characters: expected at most"):
        toml.read(file)
    file.write_text("a = " + "[" * 5000 + "]" * 5000 + "\n")
    with pytest.raises(ConfigError, match="nested too deeply"):
        toml.read(file)


def test_a_config_of_as_many_values_as_it_may_hold_is_merged_in_one_pass():
    tables, calls = toml.Tables(), itertools.count()
    table = {f"key{number}": number for number in range(toml.MAX_VALUES)}
    sys.setprofile(lambda *_: next(calls))
    tables.merge(table, "first")
    sys.setprofile(None)
    assert next(calls) < 100 * toml.MAX_VALUES


def test_origins_of_what_is_laid_over_are_replaced():
    tables = toml.Tables()
    tables.merge({"a": {"name": "x", "deep": {"b": 1}}, "c": [{"d": 1}], "e": 1}, "first")
    tables.merge({"a": {"name": "y"}, "c": 2, "e": {"f": 3}}, "second")
    assert tables.origins == {"a.name": "second", "c": "second", "e.f": "second"}


def test_a_line_without_measure_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    good = '{"step": 1, "stage": "rl", "loss": 1}\n'
    path.write_text(good + '{"step": 2, "stage": "' + "x" * (1 << 21) + '"}\n' + good)
    assert [line.step for line in metrics.read(path)] == [1, 1]
    assert metrics.count_unread(path, 2) == 1
    path.write_text(good + "x" * (1 << 21))
    metrics.Jsonl(path).close()
    assert path.read_text() == good


def test_the_index_behind_a_pipe_is_read_from_the_records(run):
    put_pipe(run / "episodes.sqlite")
    with pytest.warns(RuntimeWarning, match="named pipe"), EpisodeStore(run) as store:
        assert list(store.query(stage="rl"))
