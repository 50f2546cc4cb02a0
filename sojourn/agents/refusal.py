"""Says to an agent why its action was refused."""

from __future__ import annotations

from sojourn.call_text import answer
from sojourn.errors import ActionError
from sojourn.types import Message, Stop, Turn


class ReplyError(ActionError):
    """Carries what is to be said to an agent, as it is, where a refusal would be."""


def reasons(error: ActionError, turn: Turn) -> tuple[Message, ...]:
    """Returns the messages that tell why the action of a turn was refused: the answer to each structured call that it
    made, else one of the user."""
    cut_off = turn.sample.stop is Stop.LENGTH and not isinstance(error, ReplyError)
    cut = f" (cut off after {len(turn.sample.tokens)} tokens)" if cut_off else ""
    calls = turn.message.calls if turn.message is not None else ()
    return tuple(answer(call, f"{error}{cut}") for call in calls or (None,))
