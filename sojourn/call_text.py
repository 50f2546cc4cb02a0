"""Writes a tool call as text, in the one way in which people read it and a search finds it, reads it back, and answers
it."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sojourn.types import Message, Role, Tool, ToolCall

LONGEST = 10_000  # characters of a text that may be a call
BEGINS = re.compile(r"\s*([^\W\d]\w*)\s*\(")


def call_text(call: ToolCall, value_text: Callable[[Any], str] = repr) -> str:
    """Returns a tool call as it would be written in Python; `value_text` writes the values of its arguments."""
    return f"{call.name}({', '.join(f'{key}={value_text(value)}' for key, value in call.arguments.items())})"


def action_text(message: Message) -> str:
    """Returns what a message says as one text: its own or, where it has none, its calls."""
    return message.text or "; ".join(map(call_text, message.calls))


def answer(call: ToolCall | None, text: str) -> Message:
    """Returns the message that shows what came of a structured call; of the user where the action was a text (None)."""
    return Message(Role.USER, text) if call is None else Message(Role.TOOL, text, answers=call.id or call.name)


@dataclass(frozen=True)
class WrittenCall:
    """A call as a text writes it: `values` come by place, `named` by name."""

    name: str
    values: tuple[Any, ...]
    named: tuple[tuple[str | None, Any], ...]

    def arguments(self, parameters: Sequence[str]) -> dict[str, Any] | None:
        """Returns the arguments by name, where the parameters have this order; None if there are too many values, or
        one is given twice."""
        found = {key: value for key, value in [*zip(parameters, self.values, strict=False), *self.named] if key}
        return found if len(found) == len(self.values) + len(self.named) else None


def read_call(text: str) -> WrittenCall:
    """Parses a text that is one call with literal values, such as `name(1, key="two")`, without evaluating anything.

    Raises `ValueError` for any other text, with the end of a sentence about it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, about odd literals
            call = ast.parse(text.strip(), mode="eval").body
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                raise _NoCallError
            values = tuple(ast.literal_eval(value) for value in call.args)
            named = tuple((keyword.arg, ast.literal_eval(keyword.value)) for keyword in call.keywords)
    except _NoCallError:
        raise ValueError("is no call") from None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ValueError("is no call with plain values") from None
    return WrittenCall(call.func.id, values, named)


def written_call(text: str, tools: Sequence[Tool]) -> ToolCall | None:
    """Returns the call of one of the tools that a text writes, or None where it is none."""
    name = begins_with(text)
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        return None
    required = tool.parameters.get("required") or ()
    parameters = sorted(tool.parameters.get("properties") or (), key=lambda key: key not in required)
    try:
        arguments = read_call(text).arguments(parameters)
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):  # no call, or what no tool takes: sets, half a character
        return None
    return None if arguments is None else ToolCall(tool.name, arguments)


@lru_cache(maxsize=1024)  # plays of one world often say the same
def written_name(text: str) -> str | None:
    """Returns the name that a text calls, whatever tools there are, or None where the text is no call."""
    name = begins_with(text)
    try:
        return None if name is None else read_call(text).name
    except ValueError:
        return None


def begins_with(text: str) -> str | None:
    """Returns the name before the first bracket of a text that may be a call."""
    match = BEGINS.match(text) if len(text) <= LONGEST and text.rstrip().endswith(")") else None
    return match[1] if match else None


class _NoCallError(Exception):
    """Says that a text was parsed and is no call."""
