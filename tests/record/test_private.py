"""What runs record is their owner's alone; what is written elsewhere follows the umask. Modes are looked at, as root
reads whatever it likes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import trained_run

from sojourn.record import checkpoint
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.export import export
from sojourn.record.export.selection import Selection
from sojourn.record.run import RunFolder

CONFIG = 'name = "toy"\n'


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Under which everything that is made is everybody's, unless it is made otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*"))}


def test_nobody_else_may_read_what_a_run_recorded(tmp_path: Path) -> None:
    run = trained_run.train(tmp_path / "run")
    found = modes(run)
    assert len(found) > 20
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}
    assert found["."] == found["tokens"] == 0o700
    assert found["episodes.sqlite"] == found["config.toml"] == found["metrics.jsonl"] == 0o600


def test_what_is_added_to_a_run_is_private_too(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "runs" / "a", CONFIG) as run:
        run.blobs.put(b"seen")
        run.write_json("later.json", {})
        saved = checkpoint.save(run.checkpoints, 1, lambda folder: (folder / "w").write_bytes(b"w"), {}, mark=True)
        saved.mark()
        with EpisodeStore(run.path, write=True):
            assert {name: oct(mode) for name, mode in modes(run.path).items() if mode & 0o077} == {}, "its log too"
    assert stat.S_IMODE((tmp_path / "runs").stat().st_mode) == 0o777, "the folder of the runs is the umask's"


def test_a_run_that_was_given_away_stays_so(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "a", CONFIG) as run:
        pass
    for path in (run.path, *run.path.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with RunFolder.open(run.path) as run, EpisodeStore(run.path, write=True):
        run.write_json("later.json", {})
        run.blobs.put(b"seen")
    found = modes(run.path)
    assert found["."] == found["blobs"] == 0o755
    assert found["config.toml"] == 0o644
    assert found["later.json"] == 0o666, "the umask decides again"


def test_an_empty_folder_that_was_there_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(0o755)
    RunFolder.create(tmp_path / "a", CONFIG).close()
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_what_is_exported_follows_the_umask(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir(0o755)
    os.umask(0o027)
    export(trained, out / "a.jsonl", "chat", Selection())
    assert stat.S_IMODE((out / "a.jsonl").stat().st_mode) == 0o640
