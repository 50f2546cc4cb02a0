"""`sojourn init` writes what works: a world that keeps its promises, a recipe that is built, tests that pass."""

import os
import subprocess
import sys
from pathlib import Path

import doc_blocks
import pytest
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.commands.init import STARTER, SUFFIX
from sojourn.errors import ConfigError

ROOT = Path(__file__).parent.parent
WRITTEN = ["lamps.py", "test_lamps.py", "train.toml"]


@pytest.fixture
def started(tmp_path: Path) -> Path:
    done = CliRunner().invoke(app, ["init", str(tmp_path / "mine")])
    assert done.exit_code == 0, done.output
    assert f"cd {tmp_path / 'mine'}" in done.output.replace("\n", "")
    return tmp_path / "mine"


def test_it_writes_a_world_a_recipe_and_a_test_that_passes(started: Path):
    assert sorted(path.name for path in started.iterdir()) == WRITTEN
    own = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "worlds")]), "PYTEST_ADDOPTS": ""}
    environment = {**os.environ, **own}
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(started),
    ]
    done = subprocess.run(
        [*words, str(started)], cwd=started, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_nothing_is_overwritten(started: Path):
    (started / "lamps.py").unlink()
    (started / "train.toml").write_text("mine")
    result = CliRunner().invoke(app, ["init", str(started)])
    assert isinstance(result.exception, ConfigError)
    assert "test_lamps.py' exists already" in str(result.exception)
    assert (started / "train.toml").read_text() == "mine"
    assert not (started / "lamps.py").exists(), "all or nothing"


def test_a_file_is_no_folder(tmp_path: Path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["init", str(tmp_path / "file")])
    assert "is no folder" in str(result.exception)
    result = CliRunner().invoke(app, ["init", str(tmp_path / "file" / "in")])
    assert f"{tmp_path / 'file'} is no folder" in str(result.exception)


def test_the_page_to_start_from_shows_the_files():
    shown = {}
    for block in doc_blocks.blocks(ROOT / "docs" / "index.md"):
        if named := doc_blocks.FILE.match(block.text):
            shown[named[1]] = block.text[named.end() :]
    assert shown == {name: (STARTER / f"{name}{SUFFIX}").read_text() for name in ("lamps.py", "train.toml")}
