"""What the documentation shows works: its code blocks are run, built or parsed, and named files exist."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from types import ModuleType

import doc_blocks
import pytest

import sojourn
from sojourn import protocols, types
from sojourn.config.components import COMPONENTS

ROOT = Path(__file__).parent.parent
FOLDERS = (".", "deploy", "docs", "docs/*", "recipes/*", "worlds")
PAGES = sorted({page for folder in FOLDERS for page in ROOT.glob(f"{folder}/*.md")} - {ROOT / "LOG.md"})
PAGE = ModuleType("page")  # in which the Python of a page is executed
ROLES = ROOT / "docs" / "roles"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder in which the files of a page are modules."""
    (tmp_path / "presets").symlink_to(ROOT / "recipes" / "presets")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    monkeypatch.setitem(sys.modules, "page", PAGE)
    yield tmp_path
    vars(PAGE).clear()
    for module in set(sys.modules) - known:
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[module]


@pytest.mark.parametrize("page", [page for page in PAGES if list(doc_blocks.blocks(page))], ids=name)
def test_every_block_of_a_page_runs(page: Path, folder: Path):
    vars(PAGE).update(__name__="page")
    for block in doc_blocks.blocks(page):
        try:
            doc_blocks.run(block, folder, vars(PAGE))
        except (Exception, SystemExit) as error:
            said = error.format_message() if hasattr(error, "format_message") else error  # of a command line
            raise AssertionError(f"{name(page)}, line {block.line}: {type(error).__name__}: {said}") from error


def test_a_block_that_is_wrong_is_found(folder: Path):
    wrong = [
        ("python", "import sojourn\nsojourn.absent\n", "has no attribute 'absent'"),
        ("toml", "stepps = 3\n", "did you mean 'steps'"),
        ("sh", "sojourn train recipe.toml --no-such-option\n", "no-such-option"),
        ("sh", "make no-such-target\n", "no-such-target"),
        ("console", "$ sojourn check no_such_world\n", "no_such_world"),
        ("sh", "sojurn train recipe.toml\n", "nothing checks the program 'sojurn'"),
        ("console", "$ sojurn check toy\n", "nothing checks the program 'sojurn'"),
        ("pascal", "begin end.\n", "nothing runs blocks of 'pascal'"),
    ]
    for language, text, wanted in wrong:
        with pytest.raises(Exception, match=wanted):
            doc_blocks.run(doc_blocks.Block(1, language, text), folder, {})
    with pytest.raises(AssertionError, match="no command"):
        doc_blocks.check_command(["sojourn", "trian"])


def test_every_role_has_a_page_with_an_example_that_is_run():
    kinds = {"env": "world", "groups": "source"}
    for kind in COMPONENTS:
        page = ROLES / f"{kinds.get(kind, kind)}.md"
        assert any(block.language == "python" for block in doc_blocks.blocks(page)), page


RECORDS = (
    types.Task, types.Message, types.Observation, types.Step, types.Sample, types.Turn, types.Trajectory, types.Episode,
    types.Group, types.Score, types.Credit, protocols.AgentContext,
)  # fmt: skip


def listed_fields(text: str) -> list[str]:
    """Returns the fields in the first column of a table."""
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_of_a_record_is_on_its_page(record: type):
    _, _, section = (ROLES / "records.md").read_text().partition(f"\n## {record.__name__}\n")
    assert listed_fields(section.partition("\n## ")[0]) == [field.name for field in dataclasses.fields(record)]


def test_no_page_mentions_a_file_of_ours_that_is_not_there():
    for page in PAGES:
        for mentioned in re.findall(
            r"`((?:sojourn|recipes|benchmarks|tests|examples|docs)/[\w/.-]+\.\w+)`", page.read_text()
        ):
            assert (ROOT / mentioned).exists(), f"{name(page)} mentions {mentioned}"


def headings(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub and the site make them."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", line.strip().lower())) for line in lines}


def test_every_relative_link_of_a_page_leads_to_a_file_and_a_heading():
    for page in PAGES:
        for link in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", page.read_text()):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{name(page)} links {link}"
            assert not anchor or anchor in headings(target), f"{name(page)} links {link}"


def test_the_citation_and_the_changelog_are_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {sojourn.__version__}\n" in citation.replace("cff-version: 1.2.0\n", "")
    assert f"\n## {sojourn.__version__}" in (ROOT / "CHANGELOG.md").read_text()
