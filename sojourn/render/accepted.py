"""Converts messages into those that a chat template accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sojourn.errors import RenderError
from sojourn.render import hermes
from sojourn.render.program import CUTS, Program
from sojourn.types import Message, Role, Tool

QUESTION, REPLY = Message(Role.USER, "q"), Message(Role.ASSISTANT, "a")


@dataclass(frozen=True)
class Accepted:
    """Says what a chat template accepts: system messages, several user messages in a row, and tools of its own.

    Where it has none, a system message becomes the beginning of the first user message, user messages are joined by a
    blank line, and tools, calls and answers are text, as `hermes` writes them.
    """

    system: bool
    users: bool
    tools: bool

    @classmethod
    def by(cls, program: Program, native: bool) -> Accepted:
        """Returns what a program accepts; `native` says whether its own way to call tools is used."""
        system = _renders(program, [Message(Role.SYSTEM, "zqs"), QUESTION], "zqs")
        several = [QUESTION, Message(Role.USER, "zqu"), REPLY, QUESTION, Message(Role.USER, "zqv")]
        return cls(system, _renders(program, several, "zqv"), native)

    def convert(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[Message]:
        """Returns the messages as the template takes them, with the tools declared among them if need be."""
        converted = [message if self.tools else _as_text(message) for message in messages]
        if tools and not self.tools:
            converted = _declared(converted, tools)
        if not self.system:
            converted = [replace(m, role=Role.USER) if m.role is Role.SYSTEM else m for m in converted]
        if self.users and self.system:
            return converted
        return _joined(converted)


def _renders(program: Program, messages: Sequence[Message], word: str) -> bool:
    try:
        return word in program.render(messages, CUTS[0], prompt=True)
    except RenderError:
        return False


def _declared(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """Returns the messages with the tools declared at the end of the system message."""
    declaration = "".join(piece.text for piece in hermes.render_tools(tools))
    first = messages[0] if messages and messages[0].role is Role.SYSTEM else None
    if first is None:
        return [Message(Role.SYSTEM, declaration), *messages]
    return [replace(first, text="\n\n".join(filter(None, (first.text, declaration)))), *messages[1:]]


def _as_text(message: Message) -> Message:
    """Returns a message whose calls, or whose answer to a call, are in its text."""
    if message.role is Role.TOOL:
        text = "".join(piece.text for piece in hermes.render_answer(message.text))
        return replace(message, role=Role.USER, text=text, answers=None)
    if not message.calls:
        return message
    pieces = hermes.render_reply(replace(message, thought=""), thinking=False)
    return replace(message, text="".join(piece.text for piece in pieces), calls=())


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages, with all that a user said in a row in one."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is not None and last.role is message.role is Role.USER:
            joined[-1] = replace(last, text=f"{last.text}\n\n{message.text}", images=last.images + message.images)
        else:
            joined.append(message)
    return joined
