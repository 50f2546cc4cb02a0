"""Runs a chat template, a Jinja program that comes with a tokenizer, such that no text can become a control token."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sojourn.errors import RenderError
from sojourn.render.text import Codec, refuse_images
from sojourn.types import Message, Role, Tool, ToolCall

# Characters that Unicode promises never to assign. One that no message uses marks where the rendered text is cut.
CUTS = tuple(chr(number) for number in range(0xFDD0, 0xFDF0))
TODAY = datetime(2026, 1, 1)  # for templates that print the date: a run must not depend on the day
FORMS = ("%d", "%b", "%B", "%Y", "%m", "%y", "%A", "%a")
FIXED_DATE = (
    "{%- macro strftime_now(form) -%}{{ form"
    + "".join(f" | replace('{form}', '{TODAY.strftime(form)}')" for form in FORMS)
    + " }}{%- endmacro %}"
)


@dataclass(frozen=True)
class Program:
    """A tokenizer's chat template and how it wants to be asked.

    `arguments` is how it takes the arguments of tool calls, `content` what it takes as the text of a message that has
    calls alone; with `thought_in_text` it takes a thought between `<think>` and `</think>` before the text.
    """

    codec: Codec
    thinking: bool = False
    arguments: Literal["mapping", "json"] = "mapping"
    content: str | None = ""
    thought_in_text: bool = False

    def render(
        self, messages: Iterable[Message | str], cut: str, tools: Sequence[Tool] = (), *, prompt: bool,
        sampled: Sequence[ToolCall] = (),
    ) -> str:  # fmt: skip
        """Returns the text that the template gives; a string among the messages is a reply to insert unchanged.
        `sampled` are the calls of the reply among them, where it was sampled: their ids are those that it wrote."""
        converted = self._converted(messages, cut, sampled)
        try:
            return self.codec.tokenizer.apply_chat_template(
                converted,
                tools=[self._tool_schema(tool, cut) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=prompt,
                enable_thinking=self.thinking,
                chat_template=self._template(),
            )
        except Exception as error:  # a template is a program: it raises what it likes
            raise RenderError(
                f"the chat template cannot render {[str(message['role']) for message in converted]} "
                f"({type(error).__name__}: {str(error)[:120]}): expected an order of roles that it accepts: "
                "use a renderer for this model's format"
            ) from None

    def _template(self) -> str | None:
        """Returns the template with a function for today's date that gives the same on every day; None where it prints
        no date."""
        own = self.codec.tokenizer.chat_template
        return FIXED_DATE + own if isinstance(own, str) and "strftime_now" in own else None

    def _converted(
        self, messages: Iterable[Message | str], cut: str, sampled: Sequence[ToolCall]
    ) -> list[dict[str, Any]]:
        converted: list[dict[str, Any]] = []
        open_calls = _OpenCalls(sampled)
        for message in messages:
            if isinstance(message, str):
                open_calls.begin(sampled)
                converted.append({"role": "assistant", "content": message})
                continue
            found = self._as_dict(message, cut)
            if message.role is Role.ASSISTANT:
                ids = open_calls.begin(message.calls)
                if message.calls:
                    found["tool_calls"] = [
                        self._call(call, id, cut) for call, id in zip(message.calls, ids, strict=True)
                    ]
            found |= open_calls.answered(message.answers or "") if message.role is Role.TOOL else {}
            converted.append(found)
        return converted

    def _as_dict(self, message: Message, cut: str) -> dict[str, Any]:
        refuse_images(message.images, message.role)
        text = self.with_cuts(message.text, cut)
        converted: dict[str, Any] = {"role": str(message.role), "content": text}
        if message.thought and self.thought_in_text:
            converted["content"] = f"<think>\n{self.with_cuts(message.thought, cut)}\n</think>\n\n{text}"
        elif message.thought:
            converted["reasoning_content"] = converted["thinking"] = self.with_cuts(message.thought, cut)
        if message.calls:
            converted["content"] = converted["content"] or self.content
        return converted

    def _call(self, call: ToolCall, id: str, cut: str) -> dict[str, Any]:
        arguments: Any = dict(call.arguments)
        if self.arguments == "json":
            arguments = json.dumps(arguments, ensure_ascii=False)
        function = self._cut_strings({"name": call.name, "arguments": arguments}, cut)
        return {"id": id, "type": "function", "function": function}

    def _tool_schema(self, tool: Tool, cut: str) -> dict[str, Any]:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", "function": self._cut_strings(function, cut)}

    def with_cuts(self, text: str, cut: str) -> str:
        """Returns the text with cut marks around it and within every control token that it spells."""
        return f"{cut}{cut.join(self.codec.cut(text))}{cut}" if text else ""

    def _cut_strings(self, value: Any, cut: str) -> Any:
        """Returns JSON in whose strings every spelling of a control token is cut."""
        if isinstance(value, str):
            return cut.join(self.codec.cut(value))
        if isinstance(value, Mapping):
            return {self._cut_strings(str(key), cut): self._cut_strings(item, cut) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._cut_strings(item, cut) for item in value]
        return value


@dataclass
class _OpenCalls:
    """Knows the calls of the latest reply that have no answer yet, with the ids that the template is given."""

    sampled: Sequence[ToolCall]
    left: list[tuple[ToolCall, str]] = field(default_factory=list[tuple[ToolCall, str]])
    count: int = 0  # of answers

    def begin(self, calls: Sequence[ToolCall]) -> list[str]:
        """Takes the calls of the next reply; returns their ids."""
        written = {number: call.id for number, call in enumerate(self.sampled)}
        ids = [written.get(number) or call_id(number) for number in range(len(calls))]
        self.left, self.count = list(zip(calls, ids, strict=True)), 0
        return ids

    def answered(self, name: str) -> dict[str, str]:
        """Returns the fields by which an answer says whose it is: of the first call with this id or name that has none,
        else of the first that has none."""
        self.count += 1
        if not self.left:
            return {"name": name, "tool_call_id": call_id(self.count - 1)}
        at = next((at for at, (call, _) in enumerate(self.left) if name in (call.id, call.name)), 0)
        call, id = self.left.pop(at)
        return {"name": call.name if name == call.id else name, "tool_call_id": id}


def call_id(number: int) -> str:
    """Returns the id of a call by its number in its message: of nine letters and digits, as Mistral's template
    demands."""
    return f"call{number:05d}"


def unused_mark(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """Returns a cut mark that occurs in none of the messages and tools."""
    converted = [(m.text, m.thought, [(c.name, c.id, dict(c.arguments)) for c in m.calls], m.answers) for m in messages]
    everything = json.dumps(
        [converted, [(t.name, t.description, t.parameters) for t in tools]], ensure_ascii=False, default=str
    )
    for mark in CUTS:
        if mark not in everything:
            return mark
    raise RenderError("the messages use all 32 noncharacters from U+FDD0: expected one to be free: clean the texts")
