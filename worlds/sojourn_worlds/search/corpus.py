"""Passages, and the facts that they state: retrieval, questions and web sites are made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from sojourn_worlds.search.marking import normalised


class Passage(NamedTuple):
    id: str
    title: str
    text: str
    names: tuple[str, ...] = ()  # of the things that it speaks of, its own subject first


class Link(NamedTuple):
    """The value of a relation, and the passage that states it."""

    value: str
    passage: str


class Figure(NamedTuple):
    value: float
    passage: str


class Border(NamedTuple):
    neighbour: str
    length: float


class Borders(NamedTuple):
    all: tuple[Border, ...]
    passage: str


class Relation(NamedTuple):
    """A kind of link. `phrase` and `inverse` name the thing at either end: "the capital of {}", "the country whose
    capital is {}".
    """

    name: str
    of: str  # the kind of thing it starts from
    to: str  # the kind of thing it leads to
    phrase: str
    inverse: str


class Measure(NamedTuple):
    """A numeric property of things of a kind, in words: "a larger area", "the largest area"."""

    name: str
    of: str
    more: str
    most: str


@dataclass(frozen=True)
class Facts:
    """The facts that questions ask for: relations between names, figures of names, and which country borders which."""

    relations: tuple[Relation, ...]
    measures: tuple[Measure, ...]
    links: Mapping[str, Mapping[str, Link]]  # relation -> name -> value
    figures: Mapping[str, Mapping[str, Figure]]  # measure -> name -> value
    borders: Mapping[str, Borders]
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # other right ways to say a name

    @cached_property
    def inverse(self) -> dict[str, dict[str, Link]]:
        """Returns relation -> value -> the one name that it belongs to; values that several names share are left
        out."""
        by_relation: dict[str, dict[str, Link]] = {}
        for relation, links in self.links.items():
            owners: dict[str, list[str]] = {}
            for name, link in links.items():
                owners.setdefault(link.value.lower(), []).append(name)
            by_relation[relation] = {
                link.value: Link(name, link.passage)
                for name, link in links.items()
                if len(owners[link.value.lower()]) == 1
            }
        return by_relation


@dataclass(frozen=True, eq=False)
class Corpus:
    """The passages of a world. `digest` identifies the corpus in the keys of states."""

    passages: Sequence[Passage]
    digest: str
    facts: Facts | None = None

    @cached_property
    def by_id(self) -> dict[str, Passage]:
        return {passage.id: passage for passage in self.passages}

    @cached_property
    def said(self) -> dict[str, str]:
        """Returns every name, by its normalised form."""
        names = dict.fromkeys(name for passage in self.passages for name in passage.names)
        return {key: name for name in names if (key := normalised(name))}

    @cached_property
    def _longest(self) -> int:
        return max((len(key.split()) for key in self.said), default=0)

    def names_in(self, text: str) -> list[str]:
        """Returns the names that occur in a text, each once; where one is a part of another, the longest."""
        tokens, names, start = normalised(text).split(), [], 0
        while start < len(tokens):
            for length in range(min(self._longest, len(tokens) - start), 0, -1):
                if name := self.said.get(" ".join(tokens[start : start + length])):
                    names.append(name)
                    start += length - 1
                    break
            start += 1
        return list(dict.fromkeys(names))

    @cached_property
    def naming(self) -> dict[str, list[Passage]]:
        """Returns, for each lower-case name, the passages that mention it.

        Those about it that link it with others come first, then those about others, then the rest.
        """
        ranked: dict[str, list[list[Passage]]] = {}
        for passage in self.passages:
            for number, name in enumerate(passage.names):
                rank = 1 if number else 0 if len(passage.names) > 1 else 2
                ranked.setdefault(name.lower(), [[], [], []])[rank].append(passage)
        return {name: [*linking, *others, *rest] for name, (linking, others, rest) in ranked.items()}
