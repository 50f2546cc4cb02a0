"""Reads the JSON of requests: what is missing or of another type is refused by the name of its field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sojourn.config.fields import TEMPERATURE
from sojourn.gateway.requests import RequestError
from sojourn.types import Message, Role, Tool, ToolCall

LONGEST_SHOWN = 60  # characters of a value in a refusal
MOST_STOPS, LONGEST_STOPS = 64, 4096
ROLES = {
    "system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT,
    "tool": Role.TOOL, "function": Role.TOOL,
}  # fmt: skip
TEXTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal"})


class Field(NamedTuple):
    """Holds a value of a request's body as JSON, and where it is: at `key`, or in a list at the number `key`, of the
    value `above`."""

    value: Any
    key: str | int = ""
    above: Field | None = None

    @property
    def place(self) -> str:
        """Returns the value's place in the body, such as `messages[2].content`."""
        above = self.above.place if self.above is not None else ""
        if isinstance(self.key, int):
            return f"{above}[{self.key}]"
        return f"{above}.{self.key}" if above else self.key

    def get(self, key: str) -> Field:
        """Returns a value of an object by its key; None where it has none."""
        value = self.value
        return Field((value if isinstance(value, dict) else self.object()).get(key), key, self)

    def object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.refused("an object")
        return self.value

    def items(self) -> list[Field]:
        """Returns the values of a list; none where it is null."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.refused("a list")
        return [Field(item, number, self) for number, item in enumerate(self.value)]

    def text(self) -> str:
        value = self.value
        if not isinstance(value, str):
            raise self.refused("a string")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise self._unwritable() from None
        return value

    def json(self) -> Any:
        """Returns the value, which can be written again as JSON in UTF-8: half of a surrogate pair cannot, nor NaN."""
        try:
            json.dumps(self.value, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            raise self._unwritable() from None
        return self.value

    def _unwritable(self) -> RequestError:
        return RequestError(
            f"{self.place} cannot be written as JSON in UTF-8: expected whole characters, finite numbers and less than "
            "a thousand levels",
            param=self.place,
        )

    def text_or(self, default: str) -> str:
        return default if self.value is None else self.text()

    def integer(self, low: int, high: int = 2**63 - 1) -> int | None:
        """Returns a whole number, None where there is none."""
        if self.value is None:
            return None
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not low <= self.value <= high:
            raise self.refused(f"a whole number from {low} to {high}")
        return self.value

    def number(self, low: float, high: float) -> float | None:
        """Returns a number, None where there is none."""
        if self.value is None:
            return None
        if not isinstance(self.value, int | float) or isinstance(self.value, bool) or not low <= self.value <= high:
            raise self.refused(f"a number from {low:g} to {high:g}")
        return float(self.value)

    def temperature(self, high: float) -> float | None:
        """Returns a temperature, None where there is none."""
        value = self.number(0, high)
        if value is not None and not TEMPERATURE.holds(value):
            raise self.refused(TEMPERATURE.expected(float))
        return value

    def flag(self) -> bool:
        if self.value is not None and not isinstance(self.value, bool):
            raise self.refused("true or false")
        return bool(self.value)

    def refused(self, expected: str) -> RequestError:
        try:
            shown = json.dumps(self.value, default=str)
        except RecursionError:
            shown = "nested too deep"
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
    if not isinstance(value, dict):
        raise field.refused("JSON of an object")
    return field._replace(value=value).json()


def read_text(content: Field, between: str = "") -> str:
    """Returns the text of a message: a string, or a list of parts, with `between` them."""
    if isinstance(content.value, str):
        return content.text()
    return between.join(map(read_part, content.items()))


def read_part(part: Field) -> str:
    kind = part.get("type").text_or("text")
    if kind not in TEXTS:
        raise RequestError(
            f"{part.place} is of the type {kind!r}, but this model reads text alone: expected parts of the type text",
            param=part.place,
        )
    return part.get("refusal" if kind == "refusal" else "text").text()


def read_role(item: Field) -> Role:
    name = item.get("role")
    role = ROLES.get(name.text())
    if role is None:
        raise name.refused(f"one of {', '.join(ROLES)}")
    return role


def read_tool(function: Field, schema: str) -> Tool:
    """Returns a tool; `schema` is the key of its parameters."""
    parameters = function.get(schema)
    if parameters.value is not None:
        parameters.object()
    return Tool(
        function.get("name").text(), function.get("description").text_or(""), parameters.json() or {"type": "object"}
    )


def read_stop(field: Field) -> tuple[str, ...]:
    """Returns stop strings: one, or a list of them."""
    texts = [field.text()] if isinstance(field.value, str) else [item.text() for item in field.items()]
    if len(texts) > MOST_STOPS or sum(map(len, texts)) > LONGEST_STOPS:  # they are searched after every token
        raise field.refused(f"at most {MOST_STOPS} texts with at most {LONGEST_STOPS} characters together")
    return tuple(text for text in texts if text)


def listed_by(schema: Field) -> tuple[str, ...]:
    """Returns all texts that a JSON Schema allows, as JSON; none where it does not list them."""
    schema.object()
    value = schema.json()
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
