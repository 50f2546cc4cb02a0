"""A run folder is made whole, written by one process, and readable by all."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import sojourn
from sojourn.errors import RecordError
from sojourn.record.blobs import Blobs
from sojourn.record.run import RunFolder
from sojourn.record.summary import summarise

CONFIG = 'name = "toy"\nseed = 3\n[optim]\nlr = 1e-5\n'


def test_create_then_read(tmp_path: Path):
    with RunFolder.create(tmp_path / "a", CONFIG, seeds={"run": 3}) as run:
        assert sorted(os.listdir(run.path)) == [
            "blobs",
            "checkpoints",
            "config.toml",
            "lock",
            "metrics.jsonl",
            "seeds.json",
            "tokens",
            "versions.json",
        ]
    run = RunFolder.read(tmp_path / "a")
    assert run.config == {"name": "toy", "seed": 3, "optim": {"lr": 1e-5}}
    assert (run.path / "config.toml").read_text() == CONFIG
    assert run.seeds == {"run": 3}
    assert run.versions["sojourn"] == sojourn.__version__
    assert "numpy" in run.versions


def test_a_second_writer_is_refused_until_the_first_is_done(tmp_path: Path):
    run = RunFolder.create(tmp_path / "a", CONFIG)
    with pytest.raises(RecordError, match=f"being written by process {os.getpid()}"):
        RunFolder.open(run.path)
    other = "import sys; from sojourn.record.run import RunFolder; RunFolder.open(sys.argv[1])"
    refused = subprocess.run([sys.executable, "-c", other, run.path], capture_output=True, text=True, check=False)
    assert f"being written by process {os.getpid()}: wait for it" in refused.stderr
    assert not RunFolder.read(run.path).writable
    run.close()
    RunFolder.open(run.path).close()


def test_the_lock_ends_with_its_process(tmp_path: Path):
    code = (
        "import os, sys; from sojourn.record.run import RunFolder; r = RunFolder.create(sys.argv[1], ''); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "a"], check=False).returncode == 9
    RunFolder.open(tmp_path / "a").close()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path):
    run = RunFolder.create(tmp_path / "a", CONFIG)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0)
    run.close()
    RunFolder.open(run.path).close()
    os.write(write, b"x")
    os.waitpid(child, 0)


def test_failed_creation_leaves_nothing(tmp_path: Path):
    with pytest.raises(RecordError, match="is not valid TOML"):
        RunFolder.create(tmp_path / "a", "= nonsense")
    with pytest.raises(TypeError):
        RunFolder.create(tmp_path / "a", CONFIG, seeds={"run": object()})  # type: ignore[dict-item]
    assert os.listdir(tmp_path) == []
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "precious").touch()
    with pytest.raises(RecordError, match="exists and is not empty"):
        RunFolder.create(tmp_path / "b", CONFIG)
    assert os.listdir(tmp_path / "b") == ["precious"]
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="cannot be created"):
        RunFolder.create(tmp_path / "file" / "c", CONFIG)


def test_only_run_folders_open(tmp_path: Path):
    for way in (RunFolder.open, RunFolder.read):
        with pytest.raises(RecordError, match="is not a run folder"):
            way(tmp_path)


def test_next_is_unused(tmp_path: Path):
    first = RunFolder.next("toy", tmp_path)
    assert first.name.startswith("toy-")
    assert first.name.endswith("-1")
    assert not first.exists()
    RunFolder.create(first, CONFIG).close()
    (tmp_path / first.name.replace("-1", "-x")).mkdir()
    ninth = first.with_name(first.name[:-1] + "9")
    ninth.mkdir()
    assert RunFolder.next("toy", tmp_path).name == first.name[:-1] + "10"
    assert RunFolder.next("to", tmp_path).name.endswith("-1")


def test_evaluations_are_replaced_and_read_only_folders_refuse(tmp_path: Path):
    empty = summarise([], [])
    with RunFolder.create(tmp_path / "a", CONFIG) as run:
        run.add_evaluation("base", "rl", 0, empty)
        run.add_evaluation("after", "rl", 5, empty)
        run.add_evaluation("base", "rl", 0, empty)
        assert [(e["name"], e["stage"], e["step"]) for e in run.evaluations()] == [
            ("after", "rl", 5),
            ("base", "rl", 0),
        ]
    with pytest.raises(RecordError, match="opened to read"):
        RunFolder.read(run.path).add_evaluation("base", "rl", 0, empty)
    (run.path / "evaluations.json").write_text("[{")
    with pytest.raises(RecordError, match="is not JSON"):
        run.evaluations()


@pytest.mark.parametrize("text", ["[1]", "{}", '[{"name": "a", "stage": "rl", "step": 0}]', "null"])
def test_evaluations_of_another_form_are_one_sentence(tmp_path: Path, text: str):
    with RunFolder.create(tmp_path / "a", CONFIG) as run:
        (run.path / "evaluations.json").write_text(text)
        for call in (run.evaluations, lambda: run.add_evaluation("base", "rl", 0, summarise([], []))):
            with pytest.raises(RecordError, match=r"evaluations\.json holds something else than evaluations"):
                call()


def test_evaluations_without_numbers_are_one_sentence(tmp_path: Path):
    with RunFolder.create(tmp_path / "a", CONFIG) as run:
        run.add_evaluation("base", "rl", 0, summarise([], []))
        path = run.path / "evaluations.json"
        path.write_text(path.read_text().replace('"mean": null', '"mean": "high"'))
        with pytest.raises(RecordError, match="something else than evaluations"):
            run.evaluations()


def test_an_edited_config_is_refused_to_a_writer_only(tmp_path: Path):
    RunFolder.create(tmp_path / "a", CONFIG).close()
    config = tmp_path / "a" / "config.toml"
    config.write_text(CONFIG.replace("1e-5", "1e-4"))
    with pytest.raises(RecordError, match=r"config\.toml was edited since the run began: put it back"):
        RunFolder.open(tmp_path / "a")
    assert RunFolder.read(tmp_path / "a").config["optim"] == {"lr": 1e-4}
    config.write_text(CONFIG)
    RunFolder.open(tmp_path / "a").close()


def test_files_that_are_not_what_they_should_be_are_one_sentence(tmp_path: Path):
    RunFolder.create(tmp_path / "a", CONFIG).close()
    run = RunFolder.read(tmp_path / "a")
    (run.path / "versions.json").write_text("[1]")
    with pytest.raises(RecordError, match=r"versions\.json holds \[1\], not an object"):
        RunFolder.open(run.path)
    (run.path / "seeds.json").unlink()
    (run.path / "seeds.json").mkdir()
    with pytest.raises(RecordError, match=r"seeds\.json is not JSON"):
        _ = run.seeds
    (run.path / "config.toml").write_bytes(b"\xff")
    with pytest.raises(RecordError, match=r"config\.toml cannot be read"):
        _ = run.config


def test_a_full_disk_is_one_sentence(tmp_path: Path, full_disk):
    with RunFolder.create(tmp_path / "a", CONFIG) as run:
        run.add_evaluation("base", "rl", 0, summarise([], []))
        with full_disk(), pytest.raises(RecordError, match=r"evaluations\.json cannot be written \(File too large\)"):
            run.add_evaluation("after", "rl", 5, summarise([], []))
        assert [e["name"] for e in run.evaluations()] == ["base"]
        with full_disk(), pytest.raises(RecordError, match="cannot be written"):
            run.blobs.put(b"pixels")
        assert os.listdir(run.path / "blobs") == []


def test_blobs_are_named_by_content(tmp_path: Path):
    blobs = Blobs(tmp_path / "blobs")
    digest = blobs.put(b"pixels")
    assert blobs.put(b"pixels") == digest
    assert os.listdir(tmp_path / "blobs") == [digest]
    assert blobs.get(digest) == b"pixels"
    with pytest.raises(RecordError, match="64 hexadecimal digits"):
        blobs.get("../config.toml")
    with pytest.raises(RecordError, match="is not in"):
        blobs.get("0" * 64)
    blobs.path(digest).write_bytes(b"pixelz")
    with pytest.raises(RecordError, match="damaged"):
        blobs.get(digest)


def test_imports_stay_light():
    ours = "sojourn.record.run, sojourn.record.episodes.store, sojourn.plot, sojourn.record.metrics, sojourn.display"
    heavy = "'torch', 'matplotlib', 'wandb', 'tensorboard', 'trackio'"
    code = f"import sys, {ours}; print([m for m in ({heavy}) if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_folder_that_another_run_takes_meanwhile_is_left_to_it(tmp_path: Path, monkeypatch):
    def taken(name: str, parent: str | Path = "runs") -> Path:
        """Names a folder that another process makes right after it was seen to be unused."""
        path = found(name, parent)
        if path.name.endswith("-1"):
            (path / "checkpoints").mkdir(parents=True)
        return path

    found = RunFolder.next
    monkeypatch.setattr(RunFolder, "next", staticmethod(taken))
    with RunFolder.create_next("x", tmp_path, "name = 'x'\n", seeds={}) as made:
        assert made.path.name.endswith("-2")
    assert not (tmp_path / made.path.name.replace("-2", "-1") / "config.toml").exists()
