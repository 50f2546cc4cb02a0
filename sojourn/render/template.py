"""Any chat format, through the template that the model brings: slower and less sure than a renderer of its own."""

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
    """The tokenizer's own chat template (a Jinja program). `thinking` is what templates know as `enable_thinking`.

    What follows a sample is found by rendering it after a stand-in for the conversation, and taking what stands after
    it; so it must not depend on what came before. `extend` gives None where the template does not keep the sample as it
    was (Qwen3 strips earlier thoughts), and, for templates that strip thoughts, whenever the user speaks again, as an
    earlier turn may then lose its thought. Run `check_renderer` on a model before you rely on this.

    Differs from plain `apply_chat_template`: texts are never trimmed, and are tokenised by themselves, so that nothing
    in them can become a control token. Tool calls are read back in the form of `hermes` only.
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
    stop: str = field(init=False)  # what the template ends the assistant's turn with
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
        asked = self._render(PROBE, CUTS[0], speak=True).replace(CUTS[0], "")
        object.__setattr__(self, "opens_thought", asked.rstrip().endswith("<think>"))

    def open(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt:
        cut = _unused(messages, tools)
        return Prompt(self._encode(self._render(messages, cut, tools, speak=True), cut))

    def extend(self, last: Sample, messages: Sequence[Message]) -> Prompt | None:
        tokens = [int(token) for token in last.tokens]
        closed = bool(tokens) and tokens[-1] in self.stops
        if not self.keeps_thoughts and any(message.role is Role.USER for message in messages):
            return None
        said = self.decode(tokens[:-1] if closed else tokens)
        tail = self._after(said, messages)
        if tail is None:
            return None
        text, cut = tail
        return Prompt(self._encode(text.removeprefix(self.stop) if closed else text, cut))

    def parse(self, tokens: Sequence[int]) -> Message:
        said = [int(token) for token in tokens]
        if said and said[-1] in self.stops:
            said.pop()
        text = self.decode(said)
        opened = text.lstrip().startswith("<think>")
        text = text.lstrip().removeprefix("<think>") if opened else text
        return hermes.read(text, opened or self.opens_thought)

    def encode_reply(self, message: Message) -> list[int]:
        hermes.sayable(message)
        refuse_images(message.images, message.role)
        cut = _unused([message], ())
        asked = self._render(PROBE, cut, speak=True)
        whole = self._render([*PROBE, message], cut, speak=False)
        if not whole.startswith(asked):
            raise RenderError(
                f"the chat template asks for a reply with {asked[-40:]!r} but writes replies otherwise: expected the "
                "same: use a renderer of its own for this model, or switch `thinking`"
            )
        said, _, _ = whole[len(asked) :].rpartition(self.stop)
        tokens = [*self._encode(said, cut).tolist(), self.codec.token(self.stop)]
        self._reads_back(message, tokens)
        return tokens

    def decode(self, tokens: Sequence[int] | IntArray) -> str:
        return self.codec.decode(tokens)

    def _reads_back(self, message: Message, tokens: list[int]) -> None:
        try:
            back = self.parse(tokens)
        except ActionError as error:
            back = Message(Role.ASSISTANT, f"(unreadable: {error})")
        if _content(back) != _content(message):
            raise RenderError(
                f"by the chat template, the reply {_content(message)} reads back as {_content(back)}: expected the "
                "same: the template has no place, or another form, for what is in it: use a renderer of its own"
            )

    def _after(self, said: str, messages: Sequence[Message]) -> tuple[str, str] | None:
        """What the template writes after a reply when messages follow, with its cut mark; None where it rewrites."""
        cut = _unused([Message(Role.ASSISTANT, said), *messages], ())
        asked = self._render(PROBE, cut, speak=True)
        for wrapped in (f"{cut}{said}{cut}", said) if said else ("",):  # marks may hide a thought from the template
            whole = self._render([*PROBE, wrapped, *messages], cut, speak=True)
            kept = asked + wrapped
            if whole.startswith(kept + self.stop):
                return whole[len(kept) :], cut
        return None

    def _find_stop(self) -> str:
        """The first control token that the template writes after a reply, else the tokenizer's end of sequence."""
        whole = self._render([*PROBE, f"{CUTS[0]}x{CUTS[0]}"], CUTS[0], speak=False)
        _, _, tail = whole.rpartition(CUTS[0])
        places = {tail.find(text): text for text in self.codec.controls if text in tail}
        stop = places[min(places)] if places else self.codec.tokenizer.eos_token
        if not stop:
            raise RenderError(
                f"the chat template ends a reply with {tail!r}, which has no control token, and the tokenizer has no "
                "end-of-sequence token: expected one to stop at: use another model"
            )
        return stop

    def _render(self, messages: Iterable[Message | str], cut: str, tools: Sequence[Tool] = (), *, speak: bool) -> str:
        """The template's text; a string among the messages is a reply that is written as it is."""
        told = [
            {"role": "assistant", "content": message} if isinstance(message, str) else self._told(message, cut)
            for message in messages
        ]
        try:
            return self.codec.tokenizer.apply_chat_template(
                told,
                tools=[self._declared(tool, cut) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=speak,
                enable_thinking=self.thinking,
            )
        except Exception as error:  # a template is a program: it raises what it likes
            raise RenderError(
                f"the chat template cannot render {[str(message['role']) for message in told]} "
                f"({type(error).__name__}: {str(error)[:120]}): expected an order of roles that it knows: "
                "use a renderer of its own for this model"
            ) from None

    def _told(self, message: Message, cut: str) -> dict[str, Any]:
        refuse_images(message.images, message.role)
        told: dict[str, Any] = {"role": str(message.role), "content": self._marked(message.text, cut)}
        if message.thought:
            told["reasoning_content"] = self._marked(message.thought, cut)
        if message.calls:
            told["tool_calls"] = [
                {
                    "id": call.id or f"call{number}",
                    "type": "function",
                    "function": self._harmless({"name": call.name, "arguments": dict(call.arguments)}, cut),
                }
                for number, call in enumerate(message.calls)
            ]
        if message.role is Role.TOOL:
            told |= {"name": message.answers or "", "tool_call_id": message.answers or "call0"}
        return told

    def _declared(self, tool: Tool, cut: str) -> dict[str, Any]:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", "function": self._harmless(function, cut)}

    def _marked(self, text: str, cut: str) -> str:
        """The text, cut off from the template's and within every control token that it spells."""
        return f"{cut}{cut.join(self.codec.cut(text))}{cut}" if text else ""

    def _harmless(self, value: Any, cut: str) -> Any:
        """JSON whose strings spell no control token."""
        if isinstance(value, str):
            return cut.join(self.codec.cut(value))
        if isinstance(value, Mapping):
            return {self._harmless(str(key), cut): self._harmless(item, cut) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._harmless(item, cut) for item in value]
        return value

    def _encode(self, text: str, cut: str) -> IntArray:
        parts = [self.codec.encode([Piece(part, control=True)]) for part in text.split(cut)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _content(message: Message) -> tuple[str, str, list[tuple[str, Mapping[str, Any]]]]:
    return message.text, message.thought, [(call.name, call.arguments) for call in message.calls]


def _unused(messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """A cut mark that occurs in none of these."""
    told = [(m.text, m.thought, [(c.name, c.id, dict(c.arguments)) for c in m.calls], m.answers) for m in messages]
    said = json.dumps([told, [(t.name, t.description, t.parameters) for t in tools]], ensure_ascii=False, default=str)
    for mark in CUTS:
        if mark not in said:
            return mark
    raise RenderError("the messages use all 32 noncharacters from U+FDD0: expected one to be free: clean the texts")
