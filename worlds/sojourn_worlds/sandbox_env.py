"""What the environments around a sandbox share: reading an action, the observation, and the end of an episode."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sojourn.call_text import answer
from sojourn.envs.calls import LONGEST_ACTION
from sojourn.errors import ActionError
from sojourn.types import Message, Observation, Role, Step, Tool, ToolCall


def single_call(action: Message) -> ToolCall | None:
    """Returns the action's tool call, None where it has none; raises `ActionError` where it has several."""
    if len(action.calls) > 1:
        raise ActionError(f"{len(action.calls)} calls were made at once, make one")
    return action.calls[0] if action.calls else None


def arguments_of(call: ToolCall) -> Mapping[str, object]:
    """Returns the call's arguments, none where the model gave something else than a mapping."""
    return call.arguments if isinstance(call.arguments, Mapping) else {}


def checked(text: str, wanted: str, what: str = "") -> str:
    """Returns the text; raises `ActionError` where it is empty (which says what is wanted) or too long."""
    if not text.strip():
        raise ActionError(f"nothing was said, say {wanted}")
    if len(text) > LONGEST_ACTION:
        raise ActionError(f"{len(text)} characters are too many{what}, say at most {LONGEST_ACTION}")
    return text


def without_fence(text: str, languages: str) -> str:
    """Returns the content of a Markdown code fence that is the whole text; other texts as they are.

    `languages` are the names that may stand behind the opening fence, as alternatives of a regular expression.
    """
    fenced = re.fullmatch(rf"```(?:{languages})?\n(.*?)\n?```", text, re.DOTALL)
    return fenced[1] if fenced else text


def observe(text: str, tools: Sequence[Tool], system: str = "", call: ToolCall | None = None) -> Observation:
    """Returns an observation of one message, the answer to a structured call if one is given, with a system message
    where one is given."""
    prompt = (Message(Role.SYSTEM, system),) if system else ()
    return Observation((answer(call, text),), system=prompt, tools=tuple(tools))


def last_step(agent: str, passed: bool, **info: float) -> Step:
    """Returns the step that ends an episode, with reward 1 for success, else 0."""
    return Step(None, {agent: float(passed)}, done=True, success=passed, info=info)
