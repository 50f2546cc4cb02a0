"""Writes a tool call as text, in the one way in which people read it and a search finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sojourn.types import ToolCall


def call_text(call: ToolCall, value_text: Callable[[Any], str] = repr) -> str:
    """Returns a tool call as it would be written in Python; `value_text` writes the values of its arguments."""
    return f"{call.name}({', '.join(f'{key}={value_text(value)}' for key, value in call.arguments.items())})"
