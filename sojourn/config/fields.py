"""Annotations of config fields: the kind of a component, the bounds of a number, and the pattern of a text.

A component writes them in its fields, `clip_low: Annotated[float, Range(0, 1)] = 0.2`, and `config/registry.py` checks
the values of a config against them.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """Marks a field as a component of a kind: `estimator: Annotated[Estimator, Kind("estimator")]`."""

    name: str


class Range(NamedTuple):
    """The bounds of a number in a config; `min` and `max` themselves are allowed: `rank: Annotated[int, Range(1)]`.
    With `or_zero` it may be 0, too."""

    min: float = -math.inf
    max: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    or_zero: bool = False

    def holds(self, value: float) -> bool:
        return (self.or_zero and value == 0) or (self.min <= value <= self.max and self.above < value < self.below)

    def expected(self, hint: Any) -> str:
        """Returns the bounds in words, such as "a number above 0 and at most 1"."""
        limits = {"at least": self.min, "above": self.above, "at most": self.max, "below": self.below}
        bounds = " and ".join(f"{words} {limit}" for words, limit in limits.items() if math.isfinite(limit))
        return f"{'0, or ' * self.or_zero}{type_in_words(hint)} {'of ' if bounds.startswith('at') else ''}{bounds}"


TEMPERATURE = Range(0.01, or_zero=True)  # vLLM rounds lower ones up, and logits over them are not finite


class Text(NamedTuple):
    """A rule for a text in a config: the pattern that all of it matches, and the description of such a text."""

    pattern: str
    description: str

    def holds(self, value: Any) -> bool:
        return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None

    def expected(self, hint: Any) -> str:
        return self.description


PATH = r"[^\0]*[^\0\s][^\0]*"
NONBLANK = Text(PATH, "a text that is not empty")
TEXT = Text(r"[^\0]*", "a text without characters of code 0")
NONEMPTY = Text(r"(?s).+", "a text of at least one character")
FOLDER = Text(PATH, "the path of a folder")


def type_in_words(hint: Any) -> str:
    """Returns the type that a value must have in words, such as "a whole number"."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes"}
    return words.get(hint, str(getattr(hint, "__name__", hint)))
