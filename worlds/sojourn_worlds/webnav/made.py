"""Sites made from facts: an almanac of an invented world, and the CIA World Factbook.

Both are trees of regions, countries and their sections, with links across wherever a page names another's subject.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from sojourn_worlds.search import factbook
from sojourn_worlds.search.corpus import Passage
from sojourn_worlds.search.invented import invent
from sojourn_worlds.webnav.site import Link, Page, Site

HOME = "home"
IN_A_REGION = 4  # countries


@lru_cache(64)
def almanac(seed: int, countries: int) -> Site:
    """Returns the site of an invented world: home, regions, countries, their sections; cities, people, rivers are
    linked.
    """
    corpus = invent(seed, countries)
    assert corpus.facts is not None
    lands = list(corpus.facts.borders)
    subjects = {name: name for name in lands} | {p.title: p.title for p in corpus.passages if ":" not in p.title}
    pages = {}
    regions = {
        f"Region {number // IN_A_REGION + 1}": lands[number : number + IN_A_REGION]
        for number in range(0, len(lands), IN_A_REGION)
    }
    pages[HOME] = listing(HOME, "Almanac of all countries", {name: name for name in regions})
    for region, inside in regions.items():
        pages[region] = listing(region, region, {land: land for land in inside})
    for land in lands:
        sections = [passage.title for passage in corpus.passages if passage.title.startswith(f"{land}:")]
        pages[land] = listing(land, land, {title.split(": ")[1]: title for title in sorted(sections)})
    for passage in corpus.passages:
        pieces = linked(passage.text, {name: subjects[name] for name in passage.names[1:] if name in subjects})
        pages[passage.title] = Page(passage.title, passage.title, pieces)
    return Site(HOME, pages, corpus, {passage.id: passage.title for passage in corpus.passages})


@lru_cache(1)
def world() -> Site:
    """Returns the site of the factbook: home, regions, countries, their sections with all fields; neighbours are
    linked.
    """
    corpus = factbook.read()
    assert corpus.facts is not None
    pages: dict[str, Page] = {}
    sections: dict[str, dict[str, list[Passage]]] = {}
    for passage in corpus.passages:
        country, section, *_ = passage.title.split(": ")
        sections.setdefault(country, {}).setdefault(section, []).append(passage)
    regions: dict[str, list[str]] = {}
    for country, region in factbook.regions().items():
        regions.setdefault(region, []).append(country)
    pages[HOME] = listing(HOME, "World factbook", {name: name for name in sorted(regions)})
    for region, inside in regions.items():
        pages[region] = listing(region, region, {country: country for country in sorted(inside)})
    for country, parts in sections.items():
        pages[country] = listing(country, country, {section: f"{country}: {section}" for section in parts})
        for section, passages in parts.items():
            pieces: list[str | Link] = []
            for passage in passages:
                heading = passage.title.removeprefix(f"{country}: {section}").removeprefix(": ")
                neighbours = {name: name for name in passage.names[1:] if name in sections}
                pieces += [f"\n{heading}: " if heading else "\n", *linked(passage.text, neighbours)]
            path = f"{country}: {section}"
            pages[path] = Page(path, path, tuple(pieces))
    return Site(HOME, pages, corpus, {p.id: ": ".join(p.title.split(": ")[:2]) for p in corpus.passages})


def listing(path: str, title: str, links: Mapping[str, str]) -> Page:
    """Returns a page that is a list of links, from labels to targets."""
    pieces: list[str | Link] = []
    for label, to in links.items():
        pieces += [", " if pieces else "", Link(label, to)]
    return Page(path, title, tuple(pieces))


def linked(text: str, names: Mapping[str, str]) -> tuple[str | Link, ...]:
    """Returns a text with a link in the place of each of the names; of names that begin alike the longest counts."""
    pieces: list[str | Link] = [text]
    for name in sorted(names, key=len, reverse=True):
        link = Link(name, names[name])
        pieces = [part for piece in pieces for part in ([piece] if isinstance(piece, Link) else _around(piece, link))]
    return tuple(piece for piece in pieces if piece)


def _around(text: str, link: Link) -> Iterator[str | Link]:
    """Returns the text, with the link wherever its label occurs as whole words."""
    start, at = 0, text.find(link.label)
    while at >= 0:
        end = at + len(link.label)
        if not (text[at - 1 : at].isalnum() or text[end : end + 1].isalnum()):
            yield from (text[start:at], link)
            start = end
        at = text.find(link.label, end)
    yield text[start:]
