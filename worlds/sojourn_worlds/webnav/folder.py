"""A folder of HTML files as a site: their words and links; nothing outside the folder is ever opened."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from sojourn.errors import ConfigError
from sojourn_worlds.search.marking import normalised
from sojourn_worlds.webnav.site import Link, Page, Site

ENDINGS = (".html", ".htm")
UNSEEN = {"script", "style", "template", "noscript", "svg", "head"}
_LINES = "p div section article main header footer nav aside li ul ol dl dt dd table tr h1 h2 h3 h4 h5 h6 br pre"
LINES = set(_LINES.split())


class Asked(NamedTuple):
    question: str
    answers: tuple[str, ...]
    pages: tuple[str, ...]


class Reader(HTMLParser):
    """Reads the words of one file, and its links to the other known files."""

    def __init__(self, path: str, known: set[str]) -> None:
        super().__init__(convert_charrefs=True)
        self.path, self.known = path, known
        self.pieces: list[str | Link] = []
        self.title = ""
        self._unseen: list[str] = []
        self._in_title = False
        self._to = self._label = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = "svg" not in self._unseen  # a drawing has a title of its own
        elif tag in UNSEEN:
            self._unseen.append(tag)
        elif tag == "a" and not self._unseen:
            self._leave()
            self._to, self._label = self._resolve(dict(attrs).get("href") or ""), ""
        elif tag == "body":
            self._unseen.clear()
        if tag in LINES:
            self._say("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in self._unseen:
            del self._unseen[self._unseen.index(tag) :]
        elif tag == "a":
            self._leave()
        if tag in LINES:
            self._say("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif not self._unseen:
            self._say(re.sub(r"\s+", " ", data))

    def page(self) -> Page:
        self._leave()
        return Page(self.path, " ".join(self.title.split()) or self.path, tuple(self._tidy()))

    def _say(self, text: str) -> None:
        if self._to:
            self._label += text
        else:
            self.pieces.append(text)

    def _leave(self) -> None:
        """Ends a link, if one is open; a link without words is called by its target."""
        if self._to:
            self.pieces.append(Link(" ".join(self._label.split()) or self._to, self._to))
        self._to = self._label = ""

    def _resolve(self, href: str) -> str:
        """Returns the path of a file of the site, empty for everything else."""
        try:
            parts = urlsplit(href.strip())
        except ValueError:
            return ""
        if parts.scheme or parts.netloc or not parts.path:
            return ""
        path = unquote(parts.path)
        path = normpath(path.lstrip("/") if path.startswith("/") else join(dirname(self.path), path))
        target = path if path in self.known else normpath(join(path, "index.html"))
        return target if target in self.known and target != self.path else ""

    def _tidy(self) -> Iterator[str | Link]:
        """Returns words with single spaces, and without empty lines."""
        buffer = ""
        for piece in [*self.pieces, None]:
            if isinstance(piece, str):
                buffer += piece
                continue
            text = re.sub(r" ?\n[\s]*", "\n", re.sub(r"[^\S\n]+", " ", buffer))
            if text:
                yield text
            buffer = ""
            if piece is not None:
                yield piece


@lru_cache(4)
def load(folder: str, start: str = "", skip: tuple[str, ...] = ()) -> Site:
    """Returns the site of a folder without the files that match a pattern of `skip`.

    It starts at `start`, or else at index.html, or else at the first file.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ConfigError(
            f'webnav: site = "{folder}", but there is no such folder: use "invented", "factbook" or a folder'
        )
    inside = root.resolve()
    paths = [path for path in sorted(root.rglob("*")) if path.suffix.lower() in ENDINGS and path.is_file()]
    named = {path.relative_to(root).as_posix(): path for path in paths if path.resolve().is_relative_to(inside)}
    files = {name: path for name, path in named.items() if not any(fnmatchcase(name, pattern) for pattern in skip)}
    if not files:
        raise ConfigError(f'webnav: the folder "{folder}" holds no .html file: give a site of linked pages')
    if start and start not in files:
        raise ConfigError(f'webnav: start = "{start}", but the site has no such file: give its path in the folder')
    pages = {}
    for name, path in files.items():
        reader = Reader(name, set(files))
        reader.feed(path.read_text("utf-8", "replace"))
        reader.close()
        pages[name] = reader.page()
    return Site(start or ("index.html" if "index.html" in pages else next(iter(pages))), pages)


@lru_cache(4)
def questions(site: Site, file: str) -> tuple[Asked, ...]:
    """Returns the questions of a .jsonl file: {"question", "answer", "pages"}, pages by their paths in the folder."""
    questions = []
    try:
        records = [json.loads(line) for line in Path(file).read_text("utf-8").splitlines() if line.strip()]
        for record in records:
            answers = record["answer"] if isinstance(record["answer"], list) else [record["answer"]]
            questions.append(Asked(str(record["question"]), tuple(map(str, answers)), tuple(record.get("pages", ()))))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f'webnav: questions = "{file}" cannot be read ({error!r}): give {{"question", "answer", "pages"}} a line'
        ) from error
    for one in questions:
        if lost := [page for page in one.pages if page not in site.distances]:
            raise ConfigError(f'webnav: "{one.question[:60]}" needs the page "{lost[0]}", which no link leads to')
        if not one.answers or not all(map(normalised, one.answers)):
            raise ConfigError(f'webnav: "{one.question[:60]}" has an empty answer: give one or leave the question out')
    return tuple(questions)
