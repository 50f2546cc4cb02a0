"""Parses the language in which the episodes of a run are searched; a query is one line of text.

    refund "out of stock" -umbrella tag:hard,easy reward:>0.5 step:3..7 -tool:click message:sorry sort:-reward

All words and "quoted phrases" must occur in the texts of the episode; `-` before a term negates it. Case and accents
do not count, and only whole words match. `KEYS` lists what may stand before a colon: several values separated by commas
mean any of them, and values with commas or spaces are quoted. Numbers are 3, 3..7, 3.., ..7, >3, >=3, <3 or <=3; those
with a point are compared to six digits, since rewards are stored in single precision.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sojourn.config.lookup import nearest
from sojourn.errors import QueryError
from sojourn.record.search.fts_documents import clean
from sojourn.types import Ending

TEXTS = {
    "message": "words of an agent's messages, thoughts and tool calls",
    "observed": "words of the observations",
    "system": "words of the system messages",
    "error": "any, none, or words of an infrastructure failure",
}
EXACT = {
    "tag": "a tag of its task",
    "tool": "a tool that was called, in a structured call or in words",
    "env": "its world",
    "split": "the split of its task",
    "origin": "where its group came from: policy, or a source such as experts or replay",
    "stage": "the stage that it was recorded in, such as rl or evaluation-rl",
    "ending": f"why it ended: {', '.join(Ending)}",
    "success": "yes or no",
    "task": "the id of its task",
    "id": "its own id",
    "seed": "the seed of its task",
}
NUMBERS = {
    "step": "the step that it was recorded in",
    "reward": "its reward",
    "turns": "how many turns it took",
    "tokens": "how many tokens were sampled",
    "malformed": "turns whose action could not be read or done",
    "cut_off": "turns that ran out of tokens",
    "version": "a version of the weights that sampled some of it",
    "advantage": "its mean advantage",
    "seconds": "how long it took",
    "slot": "the slot of its group",
}
FRACTIONS = frozenset({"reward", "advantage", "seconds"})
SORTS = {
    "newest": "recorded last first",
    "oldest": "recorded first first",
    **{name: f"least {name} first; -{name}: most first" for name in ("reward", "turns", "tokens")},
}
KEYS = TEXTS | EXACT | NUMBERS | {"sort": f"{', '.join(SORTS)}; - before the last three reverses them"}

OLD_KEYS = {"brief": "system", "said": "message", "shown": "observed"}  # renamed keys, with their new names
ORDERS = ("newest", "oldest", *(f"{sign}{name}" for name in ("reward", "turns", "tokens") for sign in ("", "-")))
CHOICES = {"ending": tuple(Ending), "success": ("yes", "no")}
FAILED = {"any": True, "none": False}
MAX_CHARACTERS, MAX_TERMS = 2000, 50  # characters and terms of one query
_KEY = re.compile(r"([A-Za-z_]+):")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\])')
_SPACE, _BARE, _ITEM = re.compile(r"\s*"), re.compile(r"\S+"), re.compile(r"[^\s,]*")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?", re.IGNORECASE)
_COMPARED = re.compile(r"(>=|<=|>|<)(.*)", re.DOTALL)


@dataclass(frozen=True)
class Words:
    """A word or phrase that occurs in the texts of one part (`TEXTS`), or of any part if that is empty."""

    text: str
    part: str = ""
    negated: bool = False

    def __post_init__(self) -> None:
        if not any(unicodedata.category(character)[0] in "LN" for character in self.text):
            raise QueryError(f"'{self.text:.40}' has no letter or digit: search finds whole words and phrases")

    def __str__(self) -> str:
        alone = self.part == "error" and self.text.lower() in FAILED
        plain = _BARE.fullmatch(self.text) and self.text[0] != '"' and not alone
        if not self.part:
            plain = plain and self.text[0] != "-" and not _KEY.match(self.text)
        return _signed(self, f"{self.part}:" * bool(self.part) + (self.text if plain else quoted(self.text)))


@dataclass(frozen=True)
class OneOf:
    """A column or label that has one of the values."""

    key: str
    values: tuple[str, ...]
    negated: bool = False

    def __post_init__(self) -> None:
        allowed = CHOICES.get(self.key)
        for value in self.values:
            if allowed is not None and value not in allowed:
                raise QueryError(f"'{value:.40}' is no value of {self.key}: {nearest(value, allowed)}")
            if self.key == "seed" and not re.fullmatch(r"-?[0-9]{1,40}", value):
                raise QueryError(f"seed:{value:.40}: expected a whole number, such as seed:7")

    def __str__(self) -> str:
        values = (
            value if value and value[0] != '"' and _ITEM.fullmatch(value) else quoted(value) for value in self.values
        )
        return _signed(self, f"{self.key}:{','.join(values)}")


@dataclass(frozen=True)
class Failed:
    """Matches episodes by whether an infrastructure failure ended them."""

    value: bool
    negated: bool = False

    def __str__(self) -> str:
        return _signed(self, f"error:{'any' if self.value else 'none'}")


class Bound(NamedTuple):
    value: float
    included: bool = True


@dataclass(frozen=True)
class Range:
    """A number between two bounds, of which one may be missing."""

    key: str
    low: Bound | None
    high: Bound | None
    negated: bool = False

    def __post_init__(self) -> None:
        if self.low is not None and self.high is not None and self.low.value > self.high.value:
            raise QueryError(f"{self} matches nothing: write the smaller bound first")

    def __str__(self) -> str:
        return _signed(self, f"{self.key}:{self._text()}")

    def _text(self) -> str:
        match self.low, self.high:
            case (Bound(low, True), Bound(high, True)) if low == high:
                return _number_text(low)
            case (Bound(low, True), Bound(high, True)):
                return f"{_number_text(low)}..{_number_text(high)}"
            case (Bound(low, included), None):
                return f">{'=' * included}{_number_text(low)}"
            case (None, Bound(high, included)):
                return f"<{'=' * included}{_number_text(high)}"
        raise QueryError(f"{self.key}: two bounds of one range are both part of it, or it is two terms")


Term = Words | OneOf | Failed | Range


@dataclass(frozen=True)
class Query:
    """A parsed query, all of whose terms must match; `str` returns a text that `parse` reads as the same query."""

    terms: tuple[Term, ...] = ()
    sort: str = "newest"

    @classmethod
    def parse(cls, text: str) -> Query:
        """Reads a query; raises QueryError with one sentence that says what is wrong with it."""
        if len(text) > MAX_CHARACTERS:
            raise QueryError(f"the query has {len(text)} characters: ask with at most {MAX_CHARACTERS}")
        terms, sort = dict[Term, None](), "newest"  # each once, in order
        for term in _Parser(clean(text)).terms():
            if isinstance(term, str):
                sort = term
            else:
                terms[term] = None
        if len(terms) > MAX_TERMS:
            raise QueryError(f"the query has {len(terms)} terms: ask with at most {MAX_TERMS}")
        return cls(tuple(terms), sort)

    def __str__(self) -> str:
        order = [] if self.sort == "newest" else [f"sort:{self.sort}"]
        return " ".join([*map(str, self.terms), *order])

    @property
    def words(self) -> tuple[Words, ...]:
        """Returns the words and phrases that must occur."""
        return tuple(term for term in self.terms if isinstance(term, Words) and not term.negated)

    @property
    def asks_tools(self) -> bool:
        """Returns whether a term names tools that were called, or were not."""
        return any(isinstance(term, OneOf) and term.key == "tool" for term in self.terms)


def quoted(text: str) -> str:
    """Quotes any text, so that it is read as one value or phrase."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _Parser:
    """Reads a query from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def terms(self) -> Iterator[Term | str]:
        """Yields every term, and every sort order as a string."""
        while True:
            self.take(_SPACE)
            if self.at == len(self.text):
                return
            yield self._term()

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match

    def _term(self) -> Term | str:
        negated = self.text[self.at] == "-"
        self.at += negated
        match = self.take(_KEY)
        if match is None:
            return Words(self._text(_BARE) or "-", negated=negated)
        key = match[1].lower()
        if key in OLD_KEYS:
            raise QueryError(f"'{key}:' is now '{OLD_KEYS[key]}:': rename it")
        if key not in KEYS:
            raise QueryError(f"unknown key '{key}': {nearest(key, KEYS)} (in quotes it is text to find)")
        if key == "sort":
            return _order(self._value(key, _BARE), negated)
        if key == "error" and self.text[self.at : self.at + 1] != '"':
            value = self._value(key, _BARE)
            known = FAILED.get(value.lower())
            return Words(value, key, negated) if known is None else Failed(known, negated)
        if key in TEXTS:
            return Words(self._value(key, _BARE), key, negated)
        if key in NUMBERS:
            return _range(key, self._value(key, _BARE), negated)
        return OneOf(key, tuple(self._values(key)), negated)

    def _values(self, key: str) -> Iterator[str]:
        """Yields one value, or several that are separated by commas."""
        while True:
            value = self._value(key, _ITEM)
            yield value.lower() if key in CHOICES else _plain_number(value) if key == "seed" else value
            if self.text[self.at : self.at + 1] != ",":
                return
            self.at += 1

    def _value(self, key: str, bare: re.Pattern[str]) -> str:
        value = self._text(bare)
        if not value:
            raise QueryError(f"'{key}:' has no value: write it right after the colon, such as {_EXAMPLES[key]}")
        return value

    def _text(self, bare: re.Pattern[str]) -> str:
        if self.text[self.at : self.at + 1] != '"':
            match = self.take(bare)
            return match[0] if match else ""
        match = self.take(_QUOTED)
        if match is None:
            raise QueryError(
                f"the quote before '{self.text[self.at + 1 :]:.40}' is not closed: end the phrase with another"
            )
        return _ESCAPED.sub(r"\1", match[1])


def _order(value: str, negated: bool) -> str:
    if negated or value not in ORDERS:
        raise QueryError(f"'{'-' * negated}sort:{value:.40}' is no sort order: {nearest(value, ORDERS)}")
    return value


def _range(key: str, text: str, negated: bool) -> Range:
    compared = _COMPARED.fullmatch(text)
    if compared:
        bound = Bound(_number(key, compared[2]), "=" in compared[1])
        return Range(key, bound, None, negated) if compared[1][0] == ">" else Range(key, None, bound, negated)
    first, dots, last = text.partition("..")
    low = Bound(_number(key, first)) if first or not dots else None
    high = low if not dots else Bound(_number(key, last)) if last else None
    if low is None and high is None:
        raise QueryError(f"{key}:{text} has no bound: give one, such as {_EXAMPLES[key]}")
    return Range(key, low, high, negated)


def _number(key: str, text: str) -> float:
    if not _NUMBER.fullmatch(text) or (key not in FRACTIONS and not text.lstrip("+-").isdigit()):
        kind = "a number" if key in FRACTIONS else "a whole number"
        raise QueryError(f"{key}:{text:.40}: expected {kind} or a range, such as {_EXAMPLES[key]}")
    value = float(text) if key in FRACTIONS else int(text)
    if abs(value) >= 2**63:
        raise QueryError(f"{key}:{text:.40} is larger than any recorded number: expected less than 2^63")
    return value


def _plain_number(text: str) -> str:
    """Returns a whole number as the index has it, such as 7 for 007."""
    return str(int(text)) if re.fullmatch(r"[-+]?[0-9]{1,40}", text) else text


def _number_text(value: float) -> str:
    return repr(value).removesuffix(".0")


def _signed(term: Term, text: str) -> str:
    return f"-{text}" if term.negated else text


_EXAMPLES = {
    **{key: f"{key}:word" for key in (*TEXTS, *EXACT)},
    **{key: f"{key}:3, {key}:3..7 or {key}:>=3" for key in NUMBERS},
    "success": "success:yes", "ending": "ending:malformed", "seed": "seed:7", "sort": "sort:-reward",
}  # fmt: skip
