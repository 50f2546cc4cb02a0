"""Finds slots: the places in a world's actions where an attacker can put text.

The suite does not know how a world parses actions, so it takes slots from what it can see: a plain text, each text
parameter of each declared tool, and the actions of an honest play with one part replaced.
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
WORD = re.compile(r"[\w-]+")
MAX_SLOTS = 12  # the most slots of one world


@dataclass(frozen=True)
class Slot:
    """A place in an action that takes a text: `put(text)` returns the action. Slots of equal `shape` are equivalent."""

    shape: str
    put: Callable[[str], Message]


def slots(writes: Sequence[str], tools: Sequence[Tool], honest: Iterable[Message]) -> list[Slot]:
    """Returns the slots of a world, one of each shape: those of `About.text_actions`, of the declared tools, and of the
    actions of an honest play."""
    by_shape = {"text": Slot("text", _text)}
    for slot in (*map(_of_template, writes), *_of_tools(tools), *_of_actions(honest)):
        if len(by_shape) < MAX_SLOTS:
            by_shape.setdefault(slot.shape, slot)
    return list(by_shape.values())


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


def _of_text(action: str) -> Iterable[Slot]:
    """Returns slots that replace the last quoted part, all that follows the first word, and all that follows the first
    line."""
    verb = action.split(maxsplit=1)[0]
    if quoted := list(QUOTED.finditer(action)):
        start, end = quoted[-1].span()
        mark = action[start]
        name = WORD.match(verb)  # of the tool that a text calls
        yield Slot(
            f"quoted {name[0] if name else verb}", lambda text: _text(action[: start + 1] + text + mark + action[end:])
        )
    if "\n" in action:
        first = action.partition("\n")[0]
        yield Slot(f"lines {verb}", lambda text: _text(f"{first}\n{text}"))
    if action != verb:
        between = action[len(verb) : len(action) - len(action[len(verb) :].lstrip())]
        yield Slot(f"rest {verb}", lambda text: _text(f"{verb}{between}{text}"))
