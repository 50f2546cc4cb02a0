"""Reads one answer out of an agent's sentence: a value that occurs as whole words, and no other value of its kind.

A sentence that names several values, or denies one ("it is not pending"), has given no answer: the right one is never
picked out of what was said. What only looks like a value, such as a word with a letter of another alphabet, is not
read.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection
from typing import TypeVar

Value = TypeVar("Value", str, float)

NUMBER = re.compile(r"(?<![\w.])[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w)", re.ASCII)
DENIAL = re.compile(r"\b(?:not|never|neither|nor|cannot)\b|n['\u2019]t\b")
SENTENCE_END = re.compile(r"[.!?;](?:\s+|$)|\n")


def folded(text: str) -> str:
    """Returns a text in one normal form of its letters, without capitals, and with single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def said_of(text: str, values: Collection[str]) -> list[str]:
    """Returns those of `values` that occur in a text as whole words, each once."""
    plain = folded(text)
    return [value for value in values if re.search(rf"(?<!\w){re.escape(folded(value))}(?!\w)", plain)]


def numbers_in(text: str) -> list[float]:
    """Returns the different numbers that a text has in digits, in their order; commas may separate thousands."""
    return list(dict.fromkeys(float(digits.replace(",", "")) for digits in NUMBER.findall(folded(text))))


def number_of(text: str) -> float | None:
    """Returns the number that a text is; None where it is anything else."""
    plain = folded(text).removeprefix("$")
    return float(plain.replace(",", "")) if NUMBER.fullmatch(plain) else None


def one_of(text: str, values: Collection[str]) -> str | None:
    """Returns the one of `values` that a text names; None where it names none or several, or denies it."""
    named = _only(text, 1, lambda part: said_of(part, values))
    return named[0] if named else None


def one_number(text: str) -> float | None:
    """Returns the one number that a text names; None where it names none or several, or denies it."""
    numbers = so_many_numbers(text, 1)
    return numbers[0] if numbers else None


def so_many_numbers(text: str, count: int) -> list[float] | None:
    """Returns the numbers that a text names where there are `count` different ones, none of them denied; else None."""
    return _only(text, count, numbers_in)


def _only(text: str, count: int, read: Callable[[str], list[Value]]) -> list[Value] | None:
    values = read(text)
    if len(values) != count or any(read(part) and DENIAL.search(folded(part)) for part in SENTENCE_END.split(text)):
        return None
    return values
