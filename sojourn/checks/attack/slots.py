"""Slots: the places of a world's actions into which an attacker can put text of their own.

Nobody tells the suite how a world reads actions, so slots are taken from what is there to see: a plain text, each text
parameter of each declared tool, and what an honest play said, with one part of it replaced.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sojourn.checks.env.play import invent
from sojourn.types import Message, Role, Tool, ToolCall

QUOTED = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'")
MOST = 12  # slots of one world


@dataclass(frozen=True)
class Slot:
    """A way to say a text: `put(text)` is the action; slots of one `shape` are alike."""

    shape: str
    put: Callable[[str], Message]


def slots(writes: Sequence[str], tools: Sequence[Tool], honest: Iterable[Message]) -> list[Slot]:
    """Returns the slots of a world by what it says of itself (`About.writes`), by the tools that it declares, and by
    what an honest play said, one of each shape."""
    found = {"text": Slot("text", _text)}
    for slot in (*map(_of_template, writes), *_of_tools(tools), *_of_actions(honest)):
        if len(found) < MOST:
            found.setdefault(slot.shape, slot)
    return list(found.values())


def _text(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def _of_template(template: str) -> Slot:
    before, _, after = template.partition("{}")
    return Slot(template, lambda text: _text(before + text + after))


def _of_tools(tools: Sequence[Tool]) -> Iterable[Slot]:
    for tool in tools:
        properties: Mapping[str, Any] = tool.parameters.get("properties", {})
        filled = {name: invent(schema, random.Random(name)) for name, schema in properties.items()}
        for name, schema in properties.items():
            if schema.get("type", "string") == "string":
                yield _argument(ToolCall(tool.name, filled), name)


def _of_actions(honest: Iterable[Message]) -> Iterable[Slot]:
    for action in honest:
        for call in action.calls:
            yield from (_argument(call, name) for name, value in call.arguments.items() if isinstance(value, str))
        if action.text and not action.calls:
            yield from _of_text(action.text)


def _argument(call: ToolCall, name: str) -> Slot:
    def put(text: str) -> Message:
        return Message(Role.ASSISTANT, calls=(replace(call, arguments={**call.arguments, name: text}),))

    return Slot(f"call {call.name} {name}", put)


def _of_text(said: str) -> Iterable[Slot]:
    """Replaces the last quoted part, all that follows the first word, and all that follows the first line."""
    verb = said.split(maxsplit=1)[0]
    if quoted := list(QUOTED.finditer(said)):
        start, end = quoted[-1].span()
        mark = said[start]
        yield Slot(f"quoted {verb}", lambda text: _text(said[: start + 1] + text + mark + said[end:]))
    if "\n" in said:
        first = said.partition("\n")[0]
        yield Slot(f"lines {verb}", lambda text: _text(f"{first}\n{text}"))
    if said != verb:
        between = said[len(verb) : len(said) - len(said[len(verb) :].lstrip())]
        yield Slot(f"rest {verb}", lambda text: _text(f"{verb}{between}{text}"))
