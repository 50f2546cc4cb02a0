"""Tool calls and thoughts as text: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` and `<think>`.

The tags and JSON are those of Hermes 2 Pro (Nous Research 2024), which Qwen 2.5 and 3 were trained on too. The
sentences around the tool schemas are ours, not those of either model's template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from sojourn.errors import ActionError, RenderError
from sojourn.render.call_json import read_object
from sojourn.render.partial import PartialReply, text_so_far, thought_so_far
from sojourn.render.text import Piece
from sojourn.types import Message, Role, Tool, ToolCall

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
FORM = '<tool_call>{"name": "...", "arguments": {...}}</tool_call>'
DECLARATION = "# Tools\n\nYou can call functions. Their signatures are:\n<tools>\n"
USAGE = (
    "</tools>\n\nTo call one, answer with its name and its arguments as JSON:\n<tool_call>\n"
    '{"name": <name>, "arguments": <arguments>}\n</tool_call>'
)
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def render_tools(tools: Sequence[Tool]) -> list[Piece]:
    """Returns the declaration of the tools and how to call them, for the first message of a conversation."""
    pieces = [Piece(DECLARATION, control=True)]
    for tool in tools:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        pieces.append(Piece(_json({"type": "function", "function": function}) + "\n"))
    return [*pieces, Piece(USAGE, control=True)]


def render_answer(text: str) -> list[Piece]:
    """Returns a tool's answer."""
    return [Piece("<tool_response>\n", control=True), Piece(text), Piece("\n</tool_response>", control=True)]


def render_reply(message: Message, thinking: bool) -> list[Piece]:
    """Returns the assistant's message after the header of its turn (and after `<think>` where it thinks)."""
    if message.thought and not thinking:
        raise RenderError(
            f"the assistant's message has the thought {message.thought[:40]!r}, but this renderer renders none: "
            "set thinking = true"
        )
    pieces = [Piece(message.thought), Piece("\n</think>\n\n", control=True)] if thinking else []
    pieces.append(Piece(message.text))
    for number, call in enumerate(message.calls):
        opening = "\n<tool_call>\n" if message.text or number else "<tool_call>\n"
        inner = _json({"name": call.name, "arguments": dict(call.arguments)})
        pieces += [Piece(opening, control=True), Piece(inner), Piece("\n</tool_call>", control=True)]
    return pieces


def require_parseable(message: Message) -> None:
    """Raises `RenderError` for a reply that `parse_reply` would parse as a different message."""
    if message.role is not Role.ASSISTANT:
        raise RenderError(f"a {message.role} message cannot be a reply: expected role assistant")
    for text, tag in ((message.text, "<tool_call>"), (message.thought, "</think>")):
        if tag in text:
            raise RenderError(
                f"the reply spells {tag} in {text[:60]!r}, which would be read back as structure: "
                "expected it in `calls` and `thought` only: take it out of the text"
            )
    for call in message.calls:
        if "</tool_call>" in _json(dict(call.arguments)) + call.name:
            raise RenderError(
                f"the call of {call.name!r} spells </tool_call> in its arguments, which would end it "
                "early: expected no tags there: take it out of the arguments"
            )


def parse_reply(text: str, thinking: bool) -> Message:
    """Parses the assistant's text into a message with thought and tool calls.

    Text without calls and thoughts is kept exactly; around them, white space is removed. Calls have no id. Raises
    `ActionError` with a message for the model.
    """
    thought = ""
    if thinking:
        thought, closed, text = text.partition("</think>")
        if not closed:
            raise ActionError("Your thought was not closed: think more briefly, write </think>, then say your action.")
        thought, text = thought.strip(), text.removeprefix("\n").removeprefix("\n")
    if "<tool_call>" not in text:
        return Message(Role.ASSISTANT, text, thought)
    if "<tool_call>" in text[text.rfind("</tool_call>") + 1 :]:  # now every call ends, so that each is found at once
        raise ActionError(f"Your tool call was not finished: write {FORM}.")
    calls = tuple(_call(match[1].strip()) for match in CALL.finditer(text))
    outside = CALL.sub("", text)
    return Message(Role.ASSISTANT, outside.strip(), thought, calls=calls)


def parse_partial(text: str, thinking: bool, *, ended: bool) -> PartialReply:
    """Parses the beginning of the assistant's text, or the whole of one that `parse_reply` refuses (see
    `partial.ReadsPartialReplies`)."""
    thought = ""
    if thinking:
        thought, closed, text = text.partition("</think>")
        if not closed:
            return PartialReply(thought.strip() if ended else thought_so_far(thought, "</think>"))
        thought, text = thought.strip(), text.removeprefix("\n").removeprefix("\n")
    return PartialReply(thought, text if ended else call_text_so_far(text))


def call_text_so_far(text: str) -> str:
    """Returns what is known of the text of a reply that may go on, with calls or without."""
    place = text.find("<tool_call>")
    return text_so_far(text, "<tool_call>", place if place >= 0 else None)


def _call(text: str) -> ToolCall:
    call, rest = read_object(text, "arguments", FORM)
    if rest:
        raise ActionError(f"Your tool call goes on after its JSON object, with {rest[:40]!r}: write {FORM}.")
    return call


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RenderError(
            f"tool data cannot be written as JSON ({error}): expected strings, finite numbers, lists and objects: "
            "change the tool's schema or the call's arguments"
        ) from None
