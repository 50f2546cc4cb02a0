"""Hints that a reward found in what came after a turn: the best of several, and their place in a score."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sojourn.types import Score

HINT = "hint"  # the kind of the texts, as `WritesWords` names it
SHORTEST = 10  # a hint has more characters than this
NAME = re.compile(rf"{HINT} of turn (\d+)")


def best_hint(hints: Iterable[str]) -> str:
    """Returns the longest hint of more than 10 characters, the first of equals; empty where there is none."""
    stripped = (hint.strip() for hint in hints)
    return max((hint for hint in stripped if len(hint) > SHORTEST), key=len, default="")


def as_words(hints: Iterable[str]) -> dict[str, str]:
    """Returns the hints of a trajectory's turns, empty where there is none, as a score keeps them."""
    return {f"{HINT} of turn {number}": hint for number, hint in enumerate(hints, 1) if hint}


def hints_of(score: Score) -> Mapping[int, str]:
    """Returns the hints that a score keeps, by the number of the turn, from 0."""
    named = ((NAME.fullmatch(name), text) for name, text in score.words.items())
    return {int(match[1]) - 1: text for match, text in named if match is not None}
