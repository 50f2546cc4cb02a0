"""Any chat format, by the model's own chat template: slower and less certain than a renderer for the format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sojourn.errors import ActionError, RenderError
from sojourn.render import hermes
from sojourn.render.text import Codec, Piece, refuse_images
from sojourn.types import IntArray, Message, Prompt, Role, Sample, Tool

# Characters that Unicode promises never to assign. One that no message uses marks where the rendered text is cut.
CUTS = tuple(chr(number) for number in range(0xFDD0, 0xFDF0))
PROBE = (Message(Role.USER, "q"),)


@dataclass(frozen=True, kw_only=True)
class Template:
    """Renders messages by the tokenizer's own chat template (a Jinja program); `thinking` is its `enable_thinking`.

    The tokens after a sample are found by rendering the sample after a short stand-in for the conversation and taking
    what follows it; so they must not depend on earlier messages. `extend` returns None where the template does not
    keep the sample as it was (Qwen3 removes earlier thoughts), and, for templates that remove thoughts, whenever there
    is a new user message, as an earlier turn may then lose its thought. Run `check_renderer` on a model before you rely
    on this.

    Deviations from plain `apply_chat_template`: texts are never trimmed, and are tokenised by themselves, so that
    nothing in them can become a control token. Tool calls are parsed in the form of `hermes` only.
    """

    thinking: bool = False

    def bind(self, tokenizer: Any, template: str = "") -> Templated:
        return Templated(Codec(tokenizer, hermes.MARKERS), self.thinking)


@dataclass(frozen=True)
class Templated:
    """A renderer (see `sojourn.protocols.Renderer`)."""

    codec: Codec
    thinking: bool = False
    stops: tuple[int, ...] = field(init=False)
    stop: str = field(init=False)  # the text by which the template ends the assistant's turn
    keeps_thoughts: bool = field(init=False)
    opens_thought: bool = field(init=False)

    def __post_init__(self) -> None:
        if not self.codec.tokenizer.chat_template:
            raise RenderError(
                "the tokenizer has no chat template: expected one to render with: name a renderer, such as 'chatml', "
                "or use a model that was trained to chat"
            )
        stop = self._find_stop()
        eos = self.codec.tokenizer.eos_token_id
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stops", tuple(dict.fromkeys([self.codec.token(stop), *([eos] if eos else [])])))
        thought = Message(Role.ASSISTANT, "<think>\nt\n</think>\n\nx")
        object.__setattr__(self, "keeps_thoughts", self._after(thought.text, PROBE) is not None)
        prompt = self._render(PROBE, CUTS[0], prompt=True).replace(CUTS[0], "")
        object.__setattr__(self, "opens_thought", prompt.rstrip().endswith("<think>"))

    def open(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt:
        cut = _unused_mark(messages, tools)
        return Prompt(self._encode(self._render(messages, cut, tools, prompt=True), cut))

    def extend(self, last: Sample, messages: Sequence[Message]) -> Prompt | None:
        tokens = [int(token) for token in last.tokens]
        closed = bool(tokens) and tokens[-1] in self.stops
        if not self.keeps_thoughts and any(message.role is Role.USER for message in messages):
            return None
        reply = self.decode(tokens[:-1] if closed else tokens)
        tail = self._after(reply, messages)
        if tail is None:
            return None
        text, cut = tail
        return Prompt(self._encode(text.removeprefix(self.stop) if closed else text, cut))

    def parse(self, tokens: Sequence[int]) -> Message:
        reply = [int(token) for token in tokens]
        if reply and reply[-1] in self.stops:
            reply.pop()
        text = self.decode(reply)
        opened = text.lstrip().startswith("<think>")
        text = text.lstrip().removeprefix("<think>") if opened else text
        return hermes.parse_reply(text, opened or self.opens_thought)

    def encode_reply(self, message: Message) -> list[int]:
        hermes.require_parseable(message)
        refuse_images(message.images, message.role)
        cut = _unused_mark([message], ())
        prompt = self._render(PROBE, cut, prompt=True)
        whole = self._render([*PROBE, message], cut, prompt=False)
        if not whole.startswith(prompt):
            raise RenderError(
                f"the chat template asks for a reply with {prompt[-40:]!r} but starts replies otherwise: expected the "
                "same: use a renderer for this model's format, or switch `thinking`"
            )
        reply, _, _ = whole[len(prompt) :].rpartition(self.stop)
        tokens = [*self._encode(reply, cut).tolist(), self.codec.token(self.stop)]
        self._require_round_trip(message, tokens)
        return tokens

    def decode(self, tokens: Sequence[int] | IntArray) -> str:
        return self.codec.decode(tokens)

    def _require_round_trip(self, message: Message, tokens: list[int]) -> None:
        try:
            parsed = self.parse(tokens)
        except ActionError as error:
            parsed = Message(Role.ASSISTANT, f"(unreadable: {error})")
        if _content(parsed) != _content(message):
            raise RenderError(
                f"by the chat template, the reply {_content(message)} is parsed as {_content(parsed)}: expected the "
                "same: the template cannot express it: use a renderer for this model's format"
            )

    def _after(self, reply: str, messages: Sequence[Message]) -> tuple[str, str] | None:
        """Returns the text that the template puts after a reply when messages follow, with its cut mark; None where
        the template changes the reply or what came before it."""
        cut = _unused_mark([Message(Role.ASSISTANT, reply), *messages], ())
        prompt = self._render(PROBE, cut, prompt=True)
        for wrapped in (f"{cut}{reply}{cut}", reply) if reply else ("",):  # marks may hide a thought from the template
            whole = self._render([*PROBE, wrapped, *messages], cut, prompt=True)
            kept = prompt + wrapped
            if whole.startswith(kept + self.stop):
                return whole[len(kept) :], cut
        return None

    def _find_stop(self) -> str:
        """Returns the first control token that the template puts after a reply, else the end-of-sequence token."""
        whole = self._render([*PROBE, f"{CUTS[0]}x{CUTS[0]}"], CUTS[0], prompt=False)
        _, _, tail = whole.rpartition(CUTS[0])
        places = {tail.find(text): text for text in self.codec.controls if text in tail}
        stop = places[min(places)] if places else self.codec.tokenizer.eos_token
        if not stop:
            raise RenderError(
                f"the chat template ends a reply with {tail!r}, which has no control token, and the tokenizer has no "
                "end-of-sequence token: expected one to stop at: use another model"
            )
        return stop

    def _render(self, messages: Iterable[Message | str], cut: str, tools: Sequence[Tool] = (), *, prompt: bool) -> str:
        """Returns the text that the template gives; a string among the messages is a reply to insert unchanged."""
        converted = [
            {"role": "assistant", "content": message} if isinstance(message, str) else self._as_dict(message, cut)
            for message in messages
        ]
        try:
            return self.codec.tokenizer.apply_chat_template(
                converted,
                tools=[self._tool_schema(tool, cut) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=prompt,
                enable_thinking=self.thinking,
            )
        except Exception as error:  # a template is a program: it raises what it likes
            raise RenderError(
                f"the chat template cannot render {[str(message['role']) for message in converted]} "
                f"({type(error).__name__}: {str(error)[:120]}): expected an order of roles that it accepts: "
                "use a renderer for this model's format"
            ) from None

    def _as_dict(self, message: Message, cut: str) -> dict[str, Any]:
        refuse_images(message.images, message.role)
        converted: dict[str, Any] = {"role": str(message.role), "content": self._with_cuts(message.text, cut)}
        if message.thought:
            converted["reasoning_content"] = self._with_cuts(message.thought, cut)
        if message.calls:
            converted["tool_calls"] = [
                {
                    "id": call.id or f"call{number}",
                    "type": "function",
                    "function": self._cut_strings({"name": call.name, "arguments": dict(call.arguments)}, cut),
                }
                for number, call in enumerate(message.calls)
            ]
        if message.role is Role.TOOL:
            converted |= {"name": message.answers or "", "tool_call_id": message.answers or "call0"}
        return converted

    def _tool_schema(self, tool: Tool, cut: str) -> dict[str, Any]:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", "function": self._cut_strings(function, cut)}

    def _with_cuts(self, text: str, cut: str) -> str:
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

    def _encode(self, text: str, cut: str) -> IntArray:
        parts = [self.codec.encode([Piece(part, control=True)]) for part in text.split(cut)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _content(message: Message) -> tuple[str, str, list[tuple[str, Mapping[str, Any]]]]:
    return message.text, message.thought, [(call.name, call.arguments) for call in message.calls]


def _unused_mark(messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """Returns a cut mark that occurs in none of the messages and tools."""
    converted = [(m.text, m.thought, [(c.name, c.id, dict(c.arguments)) for c in m.calls], m.answers) for m in messages]
    everything = json.dumps(
        [converted, [(t.name, t.description, t.parameters) for t in tools]], ensure_ascii=False, default=str
    )
    for mark in CUTS:
        if mark not in everything:
            return mark
    raise RenderError("the messages use all 32 noncharacters from U+FDD0: expected one to be free: clean the texts")
