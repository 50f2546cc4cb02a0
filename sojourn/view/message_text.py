"""What was said, in words: messages and calls as text for pages."""

from __future__ import annotations

from sojourn.types import Message, ToolCall, Turn


def call_text(call: ToolCall) -> str:
    """A call as it would be written in Python."""
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def first_words(turn: Turn, longest: int) -> str:
    """What a turn did, on one line: its calls, else its text."""
    if turn.message is None:
        return "(could not be read)"
    said = " ".join(call_text(call) for call in turn.message.calls) or turn.message.text or turn.message.thought
    said = " ".join(said[: 4 * longest].split())
    return said if len(said) <= longest else f"{said[:longest]}…"


def message_text(message: Message) -> str:
    """All of a message's words."""
    parts = [f"(thinks: {message.thought})"] if message.thought else []
    return "\n".join([*parts, message.text, *map(call_text, message.calls)])
