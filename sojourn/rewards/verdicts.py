"""Says what a judge is to answer, and reads its verdict: strictly, and never from text that it quotes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

CODE = "code"  # the key under which a verdict repeats the code of its question
LONGEST = 20_000  # characters at the end of an answer in which a verdict is looked for


class Scale(NamedTuple):
    """The numbers that a judge may give, the worst and the best included."""

    low: float
    high: float

    def fraction(self, value: float) -> float:
        """Returns where a number lies between the worst (0) and the best (1)."""
        return (value - self.low) / (self.high - self.low)

    def value(self, fraction: float) -> float:
        """Returns the number that lies so far between the worst (0) and the best (1)."""
        return self.low + fraction * (self.high - self.low)


class FreeText(NamedTuple):
    """Any text of at most `most` characters that a judge may write."""

    most: int


Rule = Scale | FreeText | tuple[str, ...]  # the numbers, text or words that a judge may give under a key


class UnreadableError(ValueError):
    """A judge's answer does not end with a verdict as it was asked for."""


@dataclass(frozen=True)
class Form:
    """The verdict that a question asks for: a number on a scale, one of some words, or a text, under each key, and the
    code.

    `read` takes the one JSON object with which the answer ends, and nothing else. The object repeats the code of the
    question, which no text that was shown to the judge can hold, so that a verdict which the judge quotes is none.
    """

    code: str
    keys: Mapping[str, Rule]

    def template(self) -> str:
        """Returns the form as the judge is shown it."""
        fields = ", ".join(f"{json.dumps(key)}: <{_described(rule)}>" for key, rule in self.keys.items())
        return f'{{"{CODE}": "{self.code}", {fields}}}'

    def read(self, answer: str) -> dict[str, Any]:
        """Returns the verdict. Raises `UnreadableError` where the answer does not end with one."""
        found = _last_object(answer)
        if found.pop(CODE, None) != self.code:
            raise UnreadableError(f"its verdict does not repeat the {CODE} of the question")
        if found.keys() != self.keys.keys():
            raise UnreadableError(f"its verdict has the keys {', '.join(sorted(found))[:200]}")
        return {key: _value(key, rule, found[key]) for key, rule in self.keys.items()}

    def example(self, number: int) -> str:
        """Returns one of the verdicts that would be read, by a number."""
        values = {key: _example(rule, number) for number, (key, rule) in enumerate(self.keys.items(), number)}
        return json.dumps({CODE: self.code, **values})


def _described(rule: Rule) -> str:
    if isinstance(rule, FreeText):
        return f"a text of at most {rule.most} characters in quotes"
    return f"a number from {rule.low:g} to {rule.high:g}" if isinstance(rule, Scale) else " or ".join(rule)


def _example(rule: Rule, number: int) -> float | str:
    if isinstance(rule, FreeText):
        return f"It helps to know {number % 1000}."[: rule.most]
    if isinstance(rule, Scale):
        return rule.low + (rule.high - rule.low) * (number % 101) / 100
    return rule[number % len(rule)]


def _value(key: str, rule: Rule, value: Any) -> Any:
    if isinstance(rule, FreeText):
        if not isinstance(value, str) or len(value) > rule.most:
            raise UnreadableError(f"'{key}' is {value!r:.60}, not a text of at most {rule.most} characters")
        return value
    if not isinstance(rule, Scale):
        if value not in rule:
            raise UnreadableError(f"'{key}' is {value!r:.60}, not one of {', '.join(rule)}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadableError(f"'{key}' is {value!r:.60}, not a number")
    if not rule.low <= value <= rule.high:
        raise UnreadableError(f"'{key}' is {value!r:.60}, not from {rule.low:g} to {rule.high:g}")
    return float(value)


def _last_object(answer: str) -> dict[str, Any]:
    """Returns the JSON object with which an answer ends; a fence of code may be around it."""
    text = answer[-LONGEST:].strip().removesuffix("```").rstrip()
    start = text.rfind("{")
    while text.endswith("}") and start >= 0:
        try:
            found = json.loads(text[start:], object_pairs_hook=_without_doubles)
        except UnreadableError:
            raise
        except (ValueError, RecursionError):  # no JSON, or a number of more digits than Python reads
            start = text.rfind("{", 0, start)
            continue
        return found
    raise UnreadableError("it does not end with a JSON object")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise UnreadableError("its verdict has a key twice")
    return found
