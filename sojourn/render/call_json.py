"""Reads the JSON of tool calls. What is wrong with it is said to the model, with an example of a call."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sojourn.errors import ActionError
from sojourn.types import ToolCall


def read_object(text: str, key: str, example: str, *, ids: bool = False) -> tuple[ToolCall, str]:
    """Returns the call that the JSON object at the beginning of a text makes, and the rest of the text. The object has
    the name under "name" and the arguments, if there are any, under `key`; with `ids`, the call has its "id"."""
    value, rest = read_json(text, example)
    if not isinstance(value, dict):
        raise ActionError(f"Your tool call {text[:60]!r} is no JSON object: write {example}.")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise ActionError(f'Your tool call {text[:60]!r} has no "name": write {example}.')
    call, id = call_of(name, value.get(key, {}), example), value.get("id")
    return (replace(call, id=id) if ids and isinstance(id, str) else call), rest


def call_of(name: str, arguments: Any, example: str) -> ToolCall:
    """Returns a call with arguments that were read as JSON."""
    if not isinstance(arguments, dict):
        raise ActionError(f"The arguments of your call of {name[:40]!r} are no JSON object: write {example}.")
    return ToolCall(name, arguments)


def read_json(text: str, example: str) -> tuple[Any, str]:
    """Returns the JSON value at the beginning of a text, and the rest of the text."""
    try:
        value, length = json.JSONDecoder(parse_constant=_no_constant).raw_decode(text)
        # JSON can escape half a surrogate pair, but no text can hold it, and 1e999 is no finite number
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ActionError(f"Your tool call is not JSON ({str(error)[:80]}): write {example}.") from None
    return value, text[length:]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
