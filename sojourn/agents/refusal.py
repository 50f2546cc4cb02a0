"""Says to an agent why its action was refused."""

from __future__ import annotations

from sojourn.errors import ActionError
from sojourn.types import Message, Role, Stop, Turn


def reasons(error: ActionError, turn: Turn) -> tuple[Message, ...]:
    """Returns the messages that tell why the action of a turn was refused: the answer to each structured call that it
    made, else one of the user."""
    cut = f" (cut off after {len(turn.sample.tokens)} tokens)" if turn.sample.stop is Stop.LENGTH else ""
    calls = turn.message.calls if turn.message is not None else ()
    if not calls:
        return (Message(Role.USER, f"{error}{cut}"),)
    return tuple(Message(Role.TOOL, f"{error}{cut}", answers=call.id or call.name) for call in calls)
