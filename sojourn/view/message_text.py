"""Writes messages and tool calls as plain text for pages."""

from __future__ import annotations

from sojourn.call_text import call_text
from sojourn.types import Message, Turn


def action_summary(turn: Turn, limit: int) -> str:
    """Returns a turn's action on one line of at most `limit` characters: its tool calls, or its text if it has none."""
    if turn.message is None:
        return "(could not be parsed)"
    action = " ".join(call_text(call) for call in turn.message.calls) or turn.message.text or turn.message.thought
    action = " ".join(action[: 4 * limit].split())
    return action if len(action) <= limit else f"{action[:limit]}…"


def message_text(message: Message) -> str:
    """Returns the reasoning, the text and the tool calls of a message."""
    parts = [f"(reasoning: {message.thought})"] if message.thought else []
    return "\n".join([*parts, message.text, *map(call_text, message.calls)])
