"""Reads the JSON of requests: what is missing or of another type is refused by the name of its field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sojourn.gateway.requests import RequestError
from sojourn.types import Message, Role, Tool, ToolCall

LONGEST_SHOWN = 60  # characters of a value in a refusal


class Field(NamedTuple):
    """A value of a request's body, and its place there, such as `messages[2].content`."""

    value: Any
    place: str

    def get(self, key: str) -> Field:
        """Returns a value of an object by its key; None where it has none."""
        return Field(self.object().get(key), f"{self.place}.{key}" if self.place else key)

    def object(self) -> Mapping[str, Any]:
        if not isinstance(self.value, Mapping):
            raise self.refused("an object")
        return self.value

    def items(self) -> list[Field]:
        """Returns the values of a list; none where it is null."""
        if self.value is None:
            return []
        if not isinstance(self.value, Sequence) or isinstance(self.value, str):
            raise self.refused("a list")
        return [Field(item, f"{self.place}[{number}]") for number, item in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.refused("a string")
        try:
            self.value.encode()
        except UnicodeEncodeError:  # JSON can escape half a surrogate pair, but no text can hold it
            raise RequestError(
                f"{self.place} holds half of a surrogate pair: expected text in UTF-8", param=self.place
            ) from None
        return self.value

    def text_or(self, default: str) -> str:
        return default if self.value is None else self.text()

    def integer(self, low: int, high: int = 2**63 - 1) -> int | None:
        """Returns a whole number, None where there is none."""
        if self.value is None:
            return None
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not low <= self.value <= high:
            raise self.refused(f"a whole number from {low}" + (f" to {high}" if high < 2**63 - 1 else " on"))
        return self.value

    def number(self, low: float, high: float) -> float | None:
        """Returns a number, None where there is none."""
        if self.value is None:
            return None
        if not isinstance(self.value, int | float) or isinstance(self.value, bool) or not low <= self.value <= high:
            raise self.refused(f"a number from {low:g} to {high:g}")
        return float(self.value)

    def flag(self) -> bool:
        if self.value is not None and not isinstance(self.value, bool):
            raise self.refused("true or false")
        return bool(self.value)

    def refused(self, expected: str) -> RequestError:
        shown = json.dumps(self.value, ensure_ascii=False, default=str)
        shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}..."
        given = "is missing" if self.value is None else f"is {shown}"
        return RequestError(f"{self.place or 'the body'} {given}: expected {expected}", param=self.place)


def read_arguments(field: Field) -> Mapping[str, Any]:
    """Returns the arguments of a call, which come as JSON in a string, or as an object."""
    value = field.value
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except (ValueError, RecursionError):
            raise field.refused("JSON of an object") from None
    if not isinstance(value, Mapping):
        raise field.refused("JSON of an object")
    return value


def read_tool(function: Field, schema: str) -> Tool:
    """Returns a tool; `schema` is the key of its parameters."""
    parameters = function.get(schema)
    if parameters.value is not None:
        parameters.object()
    return Tool(
        function.get("name").text(), function.get("description").text_or(""), parameters.value or {"type": "object"}
    )


def read_stop(field: Field) -> tuple[str, ...]:
    """Returns stop strings: one, or a list of them."""
    texts = [field.text()] if isinstance(field.value, str) else [item.text() for item in field.items()]
    return tuple(text for text in texts if text)


def listed_by(schema: Field) -> tuple[str, ...]:
    """Returns all texts that a JSON Schema allows, as JSON; none where it does not list them."""
    value = schema.object()
    if "const" in value:
        return (json.dumps(value["const"], ensure_ascii=False),)
    if value.get("enum"):
        return tuple(json.dumps(one.value, ensure_ascii=False) for one in schema.get("enum").items())
    return ("true", "false") if value.get("type") == "boolean" else ()


def said(text: str, thought: str, calls: Sequence[ToolCall]) -> Message:
    return Message(Role.ASSISTANT, text, thought, calls=tuple(calls))


def unused(body: Mapping[str, Any], used: frozenset[str]) -> tuple[str, ...]:
    """Returns the names of fields that have a value and are not `used`, in order."""
    return tuple(sorted(key for key, value in body.items() if key not in used and value not in (None, [], {}, "")))
