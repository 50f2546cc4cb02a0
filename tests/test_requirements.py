"""What is installed is pinned, by version and by hash, and alike in every file."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (".", "deploy", "tests/*", "worlds/tests/*")
FILES = sorted(file for folder in FOLDERS for file in ROOT.glob(f"{folder}/requirements*.txt"))
PIN = re.compile(r"([A-Za-z0-9._-]+)(?:\[[\w,-]+\])?==([\w.!+]+)")
TOGETHER = (
    "requirements.txt",
    "requirements-models.txt",
    "requirements-worlds.txt",
    "deploy/requirements.txt",
)  # in one environment


def entries(file: Path) -> list[str]:
    """Each requirement of a file in one line, with its hashes."""
    text = re.sub(r"^\s*#.*$", "", file.read_text(), flags=re.MULTILINE)
    return [" ".join(entry.split()) for entry in text.replace("\\\n", " ").splitlines() if entry.strip()]


def pins(file: Path) -> list[tuple[str, str]]:
    found = [PIN.match(entry) for entry in entries(file)]
    return [(re.sub(r"[-_.]+", "-", pin[1].lower()), pin[2]) for pin in found if pin]


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def test_all_files_are_found() -> None:
    assert len(FILES) >= 10
    assert {"worlds/tests/adapters/requirements-mcp1.txt", *TOGETHER} <= {name(file) for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=name)
def test_every_requirement_has_one_version_and_its_hashes(file: Path) -> None:
    for entry in entries(file):
        assert PIN.match(entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}( |$)", entry), entry[:80]
        assert not re.search(r"https?://|--(?:extra-)?index-url", entry), "no index is named"
    found = [package for package, _ in pins(file)]
    branching = {package for entry in entries(file) if " ; " in entry for package, _ in [pins_of(entry)]}
    assert sorted({p for p in found if found.count(p) > 1} - branching) == [], "listed twice"


def pins_of(entry: str) -> tuple[str, str]:
    pin = PIN.match(entry)
    assert pin is not None
    return re.sub(r"[-_.]+", "-", pin[1].lower()), pin[2]


def test_files_that_are_installed_together_agree() -> None:
    versions: dict[str, dict[str, str]] = {}
    for file in TOGETHER:
        for package, version in pins(ROOT / file):
            versions.setdefault(package, {})[file] = version
    assert {package: found for package, found in versions.items() if len(found) > 1} == {}, "pinned in several files"


@pytest.mark.parametrize(
    "file", [*sorted(ROOT.glob("worlds/tests/adapters/requirements-*.in")), ROOT / "requirements-docs.in"], ids=name
)
def test_what_is_asked_for_is_what_is_pinned(file: Path) -> None:
    wanted = [pins_of(line) for line in file.read_text().splitlines() if line]
    assert set(wanted) <= set(pins(file.with_suffix(".txt")))


def test_make_installs_nothing_unchecked_but_torch_and_ourselves() -> None:
    """The commands that make would run, of which it is asked."""
    told = [
        subprocess.run(["make", "-n", "-B", *goal], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for goal in (
            ["setup", "VENV=.venv-none"],
            [".venv-none/worlds", "VENV=.venv-none"],
            [".venvs/mcp1/ready"],
            ["docs"],
        )
    ]
    installs = re.findall(r"pip install .*", "\n".join(told))
    assert len(installs) > 5
    unchecked = {command for command in installs if "--require-hashes" not in command}
    assert all("torch==" in command or command.endswith("--no-deps -e . -e worlds") for command in unchecked), unchecked
