"""A static web site: pages of words and links, the distances between them, and the pages that every path passes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from sojourn_worlds.search.corpus import Corpus

FEWEST_WORDS, MOST_WORDS = 4, 40  # of a sentence that is looked for


class Link(NamedTuple):
    label: str
    to: str  # a page's path


class Screen(NamedTuple):
    """The part of a page that is shown at once: its words, with numbers before the links, and the targets of those."""

    text: str
    links: Mapping[int, str]


@dataclass(frozen=True, eq=False)
class Page:
    path: str
    title: str
    pieces: tuple[str | Link, ...]

    @cached_property
    def links(self) -> tuple[str, ...]:
        return tuple(piece.to for piece in self.pieces if isinstance(piece, Link))

    @cached_property
    def text(self) -> str:
        return "".join(piece if isinstance(piece, str) else piece.label for piece in self.pieces)

    @cached_property
    def sentences(self) -> dict[str, str]:
        """Returns the sentences that can be looked for, by their lower case."""
        if not any(letter.isalnum() for piece in self.pieces if isinstance(piece, str) for letter in piece):
            return {}  # a mere list of links
        sentences = [" ".join(one.split()) for one in re.split(r"(?<=[.!?])\s+|\n+", self.text)]
        return {one.lower(): one for one in sentences if FEWEST_WORDS <= len(one.split()) <= MOST_WORDS}

    def screens(self, letters: int) -> list[Screen]:
        """Returns the page in parts of about so many letters."""
        if letters not in self._screens:
            self._screens[letters] = list(self._shown(letters))
        return self._screens[letters]

    @cached_property
    def _screens(self) -> dict[int, list[Screen]]:
        return {}

    def _shown(self, letters: int) -> Iterator[Screen]:
        text, links, number = "", {}, 0
        for piece in self.pieces:
            for fragment in [piece] if isinstance(piece, Link) else _cut(piece, letters):
                words = f"[{number + 1}]{fragment.label}" if isinstance(fragment, Link) else fragment
                if text.strip() and len(text) + len(words) > letters:
                    yield Screen(text.strip(), links)
                    text, links = "", {}
                if isinstance(fragment, Link):
                    number += 1
                    links[number] = fragment.to
                text += words
        if text.strip() or not number:
            yield Screen(text.strip(), links)


def _cut(text: str, letters: int) -> list[str]:
    """Cuts a long text into pieces that end with a whole word."""
    pieces = []
    while len(text) > letters:
        end = max(text.rfind(" ", 0, letters), text.rfind("\n", 0, letters)) + 1 or letters
        pieces.append(text[:end])
        text = text[end:]
    return [*pieces, text]


@dataclass(frozen=True, eq=False)
class Site:
    """Pages by path, and the page where every episode starts; where questions can be made of it, also the passages that
    it was made from, and the page of each.
    """

    start: str
    pages: Mapping[str, Page]
    corpus: Corpus | None = None
    page_of: Mapping[str, str] = field(default_factory=dict)  # id of a passage -> path

    @cached_property
    def distances(self) -> dict[str, int]:
        """Returns the fewest clicks from the start, for every page that can be reached."""
        return _walk([self.start], lambda path: self.pages[path].links)

    @cached_property
    def longest(self) -> int:
        """Returns a number of letters that no page exceeds."""
        return max(len(page.text) + 8 * len(page.links) for page in self.pages.values())

    @cached_property
    def _sources(self) -> dict[str, list[str]]:
        sources: dict[str, list[str]] = {path: [] for path in self.pages}
        for page in self.pages.values():
            for to in page.links:
                sources[to].append(page.path)
        return sources

    def clicks_to(self, target: str) -> dict[str, int]:
        """Returns the fewest clicks to a page, from every page that it can be reached from."""
        if target not in self._ways:
            self._ways[target] = _walk([target], lambda path: self._sources[path])
        return self._ways[target]

    @cached_property
    def _ways(self) -> dict[str, dict[str, int]]:
        return {}

    @cached_property
    def saying(self) -> dict[str, list[str]]:
        """Returns, for each sentence in lower case, the reachable pages that have it."""
        paths_of: dict[str, list[str]] = {}
        for path in self.distances:
            for sentence in self.pages[path].sentences:
                paths_of.setdefault(sentence, []).append(path)
        return paths_of

    @cached_property
    def findable(self) -> dict[int, list[str]]:
        """Returns, for each distance from the start, the pages with a sentence that no other page has."""
        by_distance: dict[int, list[str]] = {}
        for path, distance in self.distances.items():
            if distance and any(len(self.saying[sentence]) == 1 for sentence in self.pages[path].sentences):
                by_distance.setdefault(distance, []).append(path)
        return by_distance

    def unavoidable(self, target: str) -> list[str]:
        """Returns the pages that every path from the start to the target passes, the target last and the start left
        out.
        """
        chain = []
        while target != self.start:
            chain.append(target)
            target = self._dominators[target]
        return chain[::-1]

    @cached_property
    def _dominators(self) -> dict[str, str]:
        """Returns the immediate dominator of each page (Cooper, Harvey & Kennedy 2001)."""
        order, seen, stack = [], {self.start}, [(self.start, iter(self.pages[self.start].links))]
        while stack:
            path, links = stack[-1]
            for to in links:
                if to not in seen:
                    seen.add(to)
                    stack.append((to, iter(self.pages[to].links)))
                    break
            else:
                order.append(path)
                stack.pop()
        rank = {path: number for number, path in enumerate(order)}
        dominators, changed = {self.start: self.start}, True
        while changed:
            changed = False
            for path in order[-2::-1]:
                known = [source for source in self._sources[path] if source in dominators]
                best = known[0]
                for other in known[1:]:
                    best = _meet(dominators, rank, best, other)
                changed |= dominators.get(path) != best
                dominators[path] = best
        return dominators


def _meet(dominators: Mapping[str, str], rank: Mapping[str, int], one: str, other: str) -> str:
    while one != other:
        while rank[one] < rank[other]:
            one = dominators[one]
        while rank[other] < rank[one]:
            other = dominators[other]
    return one


def _walk(start: Iterable[str], onward: Callable[[str], Iterable[str]]) -> dict[str, int]:
    """Returns every page that can be reached, with the fewest clicks to it."""
    distances = dict.fromkeys(start, 0)
    queue = deque(distances)
    while queue:
        path = queue.popleft()
        for to in onward(path):
            if to not in distances:
                distances[to] = distances[path] + 1
                queue.append(to)
    return distances
