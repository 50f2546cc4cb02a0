"""Hooks of mkdocs: the order of the navigation, and pages for the files of the repository that the pages link.

A link that leaves `docs/`, such as `../recipes/toy/README.md`, works where the repository is read. On the site its
target is a page below `repository/`: Markdown and pictures as they are, any other file as a listing of its text, a
folder as its README or as the list of its files. A link whose target does not exist stays as it is, and the strict
build fails at it.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
DOCS, COPIES = "docs", "repository"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".c": "c", ".h": "c"}
PICTURES = {".png", ".svg"}
SECTIONS = (  # a page belongs to the first section that has a pattern for it
    ("Start here", ("index.md",)),
    ("How to", ("how-to/*.md",)),
    ("Roles", ("roles/*.md",)),
    ("Configuration", ("configuration/*.md",)),
    ("Methods", ("methods.md",)),
    ("Worlds", ("worlds/*.md",)),
    ("Reference", ("command-line.md", "export-columns.md", "glossary.md", "design.md", "python.md")),
    ("Guides", ("*.md",)),
)


def on_config(config: Any) -> Any:
    """Makes the navigation of the pages that exist."""
    docs, seen, sections = Path(config.docs_dir), set[str](), dict[str, list[str]]()
    for title, patterns in SECTIONS:
        found = [path.relative_to(docs).as_posix() for pattern in patterns for path in sorted(docs.glob(pattern))]
        sections[title] = sorted((page for page in found if page not in seen), key=_overviews_first)
        seen.update(found)
    sections = {title: pages for title, pages in sections.items() if pages}
    config.nav = [{title: pages[0] if len(pages) == 1 else pages} for title, pages in sections.items()]
    return config


def _overviews_first(page: str) -> bool:
    return PurePosixPath(page).stem not in ("README", "index")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages for what is linked outside of the documentation, and what those link in turn."""
    pending = [(f"{DOCS}/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    done: set[str] = set()
    while pending:
        where, text = pending.pop()
        for target in _targets(where, text):
            if target.startswith(f"{DOCS}/") or target in done:
                continue
            done.add(target)
            added = _copy(target, config)
            files.append(added)
            if target.endswith(".md"):
                pending.append((target, added.content_string))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points the links of a page at the pages of the site."""
    uri = page.file.src_uri
    where = uri.removeprefix(f"{COPIES}/") if uri.startswith(f"{COPIES}/") else f"{DOCS}/{uri}"
    if not (ROOT / where).is_file():  # the listing of a file or folder, which has no links of its own
        return markdown

    def moved(match: re.Match[str]) -> str:
        target = _resolved(where, match[1])
        if target is None:
            return match[1]
        to = target.removeprefix(f"{DOCS}/") if target.startswith(f"{DOCS}/") else _uri(target)
        return os.path.relpath(to, posixpath.dirname(uri) or ".").replace(os.sep, "/")

    return LINK.sub(moved, markdown)


def _targets(where: str, text: str) -> Iterator[str]:
    yield from (target for match in LINK.finditer(text) if (target := _resolved(where, match[1])))


def _resolved(where: str, link: str) -> str | None:
    """Returns the path in the repository that a link of a file names, a folder's README in its place; None where
    nothing is there."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(where), link))
    if path.startswith("..") or not (ROOT / path).exists():
        return None
    readme = f"{path}/README.md"
    return readme if (ROOT / readme).is_file() else path


def _uri(target: str) -> str:
    plain = PurePosixPath(target).suffix in {".md", *PICTURES}
    return f"{COPIES}/{target}" if plain else f"{COPIES}/{target}.md"


def _copy(target: str, config: Any) -> File:
    path = ROOT / target
    if path.is_file() and path.suffix in PICTURES:
        return File.generated(config, _uri(target), content=path.read_bytes())
    if path.suffix == ".md":
        return File.generated(config, _uri(target), content=path.read_text())
    if path.is_dir():
        lines = [f"- `{file.name}`" for file in sorted(path.iterdir()) if not file.name.startswith((".", "__"))]
        return File.generated(config, _uri(target), content=f"# {target}\n\n" + "\n".join(lines) + "\n")
    fence = f"`````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n`````\n"
    return File.generated(config, _uri(target), content=f"# {target}\n\n{fence}")
