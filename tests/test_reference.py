"""The reference is what the code says, and no key of the configuration is without a word about it."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Annotated, Literal

from sojourn import config_docs
from sojourn.config.components import COMPONENTS
from sojourn.config.fields import Kind, Range
from sojourn.config.lookup import find, names
from sojourn.key_meanings import OF_CLASS, OF_NAME
from sojourn.optim import Optim

DOCS = Path(__file__).parent.parent / "docs"


def tables() -> list[type]:
    components = [find(kind, name) for kind in COMPONENTS for name in names(kind)]
    return [*config_docs.RUN.values(), *config_docs.STAGES.values(), *components]


def test_the_pages_are_what_the_code_says():
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    old = [
        path
        for path, text in reference.pages().items()
        if not (DOCS / path).exists() or (DOCS / path).read_text() != text
    ]
    assert not old, "make them again: make reference"


def test_every_kind_of_component_has_a_page_that_the_overview_links():
    overview = (DOCS / "configuration" / "README.md").read_text()
    for page in ("run", "stages", *COMPONENTS):
        assert (DOCS / "configuration" / f"{page}.md").exists()
        assert f"]({page}.md)" in overview


def test_no_key_is_without_meaning():
    found = [(cls.__module__, cls.__name__, key) for cls in tables() for key in config_docs.keys(cls)]
    assert len(found) > 700
    silent = [f"{module}: {cls}.{key.name}" for module, cls, key in found if not key.meaning]
    assert not silent, "name them in the docstring of their class, in backticks, or in sojourn/key_meanings.py"


def test_no_meaning_is_of_a_key_that_is_not_there():
    fields = {f"{cls.__name__}.{f.name}" for cls in tables() for f in dataclasses.fields(cls)}
    assert set(OF_CLASS) <= fields
    assert set(OF_NAME) <= {name.partition(".")[2] for name in fields}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """Made for this test: `low` is the lower bound. Tags such as <b> are text."""

    low: Annotated[float, Range(0, below=1)] = 0.5
    many: tuple[Annotated[int, Range(1)], ...] = (1, 2)  # of several
    how: Literal["a", "b"] = "a"
    base: Annotated[object, Kind("loss")]
    optim: Optim | None = None


def test_what_looks_like_a_tag_is_text():
    assert "Tags such as \\<b> are text." in "\n".join(config_docs._described(Made))


def test_what_a_row_says():
    rows = {key.name: key for key in config_docs.keys(Made)}
    assert rows["low"] == ("low", "number", "`0.5`", "≥ 0 < 1", "Made for this test: `low` is the lower bound.")
    assert rows["many"] == ("many", "list of whole numbers", "`[1, 2]`", "≥ 1", "Of several")
    assert rows["how"] == ("how", '`"a"`, `"b"`', '`"a"`', "", "")
    assert rows["base"][1:3] == ("table: [loss](loss.md)", "*required*")
    assert rows["optim"][1:3] == ("table: [optim](stages.md#optim)", "")
