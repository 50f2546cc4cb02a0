"""Says whether two messages are the same action, or of the same kind."""

from __future__ import annotations

from sojourn.call_text import written_name
from sojourn.types import Message


def same_action(one: Message, other: Message) -> bool:
    """Returns whether two messages are the same action: the same calls, or else the same text up to white space."""
    if one.calls or other.calls:
        return [(call.name, dict(call.arguments)) for call in one.calls] == [
            (call.name, dict(call.arguments)) for call in other.calls
        ]
    return one.text.split() == other.text.split()


def same_kind(one: Message, other: Message) -> bool:
    """Returns whether two messages call the same tools, or else begin with the same word, with whatever arguments."""
    return _kinds(one) == _kinds(other)


def _kinds(message: Message) -> list[str]:
    if message.calls:
        return [call.name for call in message.calls]
    return [written_name(message.text) or word for word in message.text.split()[:1]]
