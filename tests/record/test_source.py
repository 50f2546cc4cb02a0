"""Which code made a run: the files' digest, and the commit of a checkout."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sojourn
from sojourn.record.run import versions
from sojourn.record.source import digest_of

ASK = "import json; from sojourn.record.source import revision; print(json.dumps(revision()))"


def asked(folder: Path, **environment: str) -> dict[str, str]:
    """What a copy of the package says of itself."""
    import json

    told = {**os.environ, **environment, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", ASK], env=told, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The part of the package that says what it is."""
    package = Path(sojourn.__file__).parent
    for name in (
        "__init__.py",
        "types.py",
        "version.py",
        "train/__init__.py",
        "record/__init__.py",
        "record/source.py",
    ):
        (tmp_path / "sojourn" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / name, tmp_path / "sojourn" / name)
    return tmp_path


def test_the_digest_follows_from_names_and_contents(copy: Path):
    first = asked(copy)
    assert first == asked(copy)
    assert first.keys() == {"source"}
    (copy / "sojourn" / "notes.txt").write_text("no code")
    assert asked(copy) == first
    (copy / "sojourn" / "types.py").open("a").close()
    assert asked(copy) == first
    path = copy / "sojourn" / "types.py"
    path.write_text(path.read_text() + "\n")
    second = asked(copy)
    assert second != first
    path.rename(path.with_name("facts.py"))
    (copy / "sojourn" / "__init__.py").write_text("")
    third = asked(copy)
    assert len({first["source"], second["source"], third["source"]}) == 3


def test_a_digest_can_be_made_with_common_tools(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    lines = "".join(f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("a", "b"))
    assert digest_of([tmp_path / "a", tmp_path / "b"], tmp_path) == hashlib.sha256(lines.encode()).hexdigest()


@pytest.mark.skipif(shutil.which("git") is None, reason="commits are git's")
def test_a_checkout_names_its_commit_and_says_where_files_differ(copy: Path):
    git(copy, "init", "-q")
    assert "commit" not in asked(copy)  # of a checkout of something else, in which we lie
    git(copy, "add", ".")
    git(copy, "commit", "-q", "-m", "first")
    head = git(copy, "rev-parse", "HEAD")
    assert asked(copy)["commit"] == head
    (copy / "elsewhere").write_text("not ours")
    assert asked(copy)["commit"] == head
    (copy / "sojourn" / "new.py").write_text("")
    assert asked(copy)["commit"] == f"{head}+changed"
    python = str(Path(sys.executable).parent)
    assert "commit" not in asked(copy, PATH=python) or shutil.which("git", path=python)


def test_a_run_says_which_code_made_it():
    found = versions()
    assert len(found["source"]) == 64
    assert found["began"].endswith("+00:00")
