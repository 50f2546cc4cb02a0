"""Any chat format, by the model's own chat template: slower and less certain than a renderer for the format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from sojourn.errors import ActionError, RenderError
from sojourn.render import hermes, learned
from sojourn.render.accepted import Accepted
from sojourn.render.learned import PROBE, CallForm, ThoughtForm
from sojourn.render.partial import PartialReply
from sojourn.render.program import CUTS, Program, unused_mark
from sojourn.render.text import Codec, Piece, refuse_images
from sojourn.types import IntArray, Message, Prompt, Role, Sample, Tool, ToolCall


@dataclass(frozen=True, kw_only=True)
class Template:
    """Renders messages by the tokenizer's own chat template (a Jinja program); `thinking` is its `enable_thinking`.

    How the template writes thoughts and tool calls is learned from what it renders. `tools = "text"` declares tools in
    Sojourn's words, in the system message, and writes calls and answers as text (see `hermes`); so does "auto" where
    the template declares no tools, or writes the arguments of calls in another form than JSON. Arguments as XML
    (GLM 4.5, Qwen3.5, Nemotron 3) have no types: the text "5" and the number 5 are written alike, and a reply is parsed
    without the tools that would tell them apart, so calls would not read back as they were meant.

    The tokens after a sample are found by rendering the sample after a short stand-in for the conversation and taking
    what follows it; so they must not depend on earlier messages. `extend` returns None where the template does not
    keep the sample as it was (Qwen3 removes earlier thoughts), and, for templates that remove thoughts, or move the
    system message to the last user message (Mistral), whenever there is a new user message. `check_renderer`
    proves it for a model.

    Deviations from plain `apply_chat_template`: texts are never trimmed, and are tokenised by themselves, so that
    nothing in them can become a control token; where a template refuses system messages or two user messages in a row,
    the one becomes part of the first user message, the others one message; a template that prints today's date prints
    1 January 2026 on every day, so that a run can be repeated.
    """

    thinking: bool = False
    tools: Literal["auto", "text"] = "auto"

    def bind(self, tokenizer: Any, template: str = "") -> Templated:
        return Templated(Codec(tokenizer, hermes.MARKERS), self.thinking, self.tools == "auto")


@dataclass(frozen=True)
class Templated:
    """A renderer (see `sojourn.protocols.Renderer`)."""

    codec: Codec
    thinking: bool = False
    own_tools: bool = True  # whether to use the template's way to declare and call tools, where it has one
    note: str = ""  # says how the template is used, where `auto` chose it
    stops: tuple[int, ...] = field(init=False)
    stop: str = field(init=False)  # the text by which the template ends the assistant's turn
    keeps_history: bool = field(init=False)  # what came before, when the user speaks again
    opens_thought: bool = field(init=False)
    program: Program = field(init=False)
    accepted: Accepted = field(init=False)
    thoughts: ThoughtForm | None = field(init=False)
    calls: CallForm | None = field(init=False)

    def __post_init__(self) -> None:
        if not self.codec.tokenizer.chat_template:
            raise RenderError(
                "the tokenizer has no chat template: expected one to render with: name a renderer, such as 'chatml', "
                "or use a model that was trained to chat"
            )
        self._set(program=Program(self.codec, self.thinking))
        self._set(stop=self._find_stop())
        head = self.program.render(PROBE, CUTS[0], prompt=True).replace(CUTS[0], "")
        self._set(opens_thought=head.rstrip().endswith("<think>"))
        self._learn_thoughts()
        found = None
        if self.own_tools and learned.declares_tools(self.program):
            found = learned.call_form(self.program, self.stop, self.thoughts)
        program, calls = found or (self.program, None)
        self._set(program=program, calls=calls, accepted=Accepted.by(program, native=calls is not None))
        eos = self.codec.tokenizer.eos_token_id
        ends = [self.codec.token(self.stop), *([self.codec.token(calls.stop)] if calls else [])]
        self._set(stops=tuple(dict.fromkeys([*ends, *([] if eos is None else [eos])])))
        self._set(keeps_history=self._keeps_thoughts() and self._keeps_opening())

    def open(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt:
        messages = self.accepted.convert(messages, tools)
        tools = tools if self.calls else ()
        cut = unused_mark(messages, tools)
        return Prompt(self._encode(self.program.render(messages, cut, tools, prompt=True), cut))

    def extend(self, last: Sample, messages: Sequence[Message]) -> Prompt | None:
        messages = self.accepted.convert(messages)
        tokens = [int(token) for token in last.tokens]
        closed = bool(tokens) and tokens[-1] in self.stops
        if not self.keeps_history and any(message.role is Role.USER for message in messages):
            return None
        reply = self.decode(tokens[:-1] if closed else tokens)
        tail = self._after(reply, messages, self.decode(tokens[-1:]) if closed else "")
        if tail is None:
            return None
        return Prompt(self._encode(*tail))

    def parse(self, tokens: Sequence[int]) -> Message:
        reply = [int(token) for token in tokens]
        if reply and reply[-1] in self.stops:
            reply.pop()
        text = self.decode(reply)
        thought, rest = self._split(text)
        if self.calls is None:
            return replace(hermes.parse_reply(rest, False), thought=thought)
        rest, calls = self.calls.parse(rest)
        return Message(Role.ASSISTANT, rest, thought, calls=_without_ids(calls))

    def parse_partial(self, text: str, *, ended: bool = False) -> PartialReply:
        thought, rest = self._thought_form.split_partial(text, self.opens_thought, ended=ended)
        if ended:
            return PartialReply(thought, rest)
        return PartialReply(thought, self.calls.so_far(rest) if self.calls else hermes.call_text_so_far(rest))

    def encode_reply(self, message: Message) -> list[int]:
        self._require_parseable(message)
        refuse_images(message.images, message.role)
        (converted,) = self.accepted.convert([message])
        cut = unused_mark([converted])
        tools = learned.TOOLS if converted.calls else ()
        prompt = self.program.render(PROBE, cut, tools, prompt=True)
        whole = self.program.render([*PROBE, converted], cut, tools, prompt=False)
        start = learned.opening_of(prompt) if self.opens_thought else prompt
        if not whole.startswith(start):
            raise RenderError(
                f"the chat template asks for a reply with {prompt[-40:]!r} but starts replies otherwise: expected the "
                "same: use a renderer for this model's format, or switch `thinking`"
            )
        stop = self.calls.stop if converted.calls and self.calls else self.stop
        reply = whole[len(start) :]
        reply = reply.rpartition(stop)[0] if stop in reply else reply
        if self.opens_thought:
            reply = self._with_opened_thought(reply, prompt[len(start) :], converted.thought, cut)
        tokens = [*self._encode(reply, cut).tolist(), self.codec.token(stop)]
        self._require_round_trip(message, tokens)
        return tokens

    def decode(self, tokens: Sequence[int] | IntArray) -> str:
        return self.codec.decode(tokens)

    def _learn_thoughts(self) -> None:
        self._set(thoughts=learned.thought_form(self.program))
        if self.thinking and not (self.thoughts and self.thoughts.end) and learned.switches_thinking(self.program):
            program = replace(self.program, thought_in_text=True)
            if form := learned.thought_form(program):
                self._set(program=program, thoughts=form)

    def _keeps_thoughts(self) -> bool:
        form = self.thoughts if self.thoughts and self.thoughts.end else ThoughtForm("<think>\n", "\n</think>\n\n")
        return self._after(f"{'' if self.opens_thought else form.start}t{form.end}{form.plain}x", PROBE) is not None

    def _keeps_opening(self) -> bool:
        """Returns whether the system message and the tools stay where they are when the user speaks again (Mistral's
        template moves them to the last user message)."""
        tools = learned.TOOLS if self.calls else ()
        opening = [*([Message(Role.SYSTEM, "s")] if self.accepted.system else []), *PROBE]
        first = self.program.render(opening, CUTS[0], tools, prompt=True)
        try:
            second = self.program.render([*opening, "x", *PROBE], CUTS[0], tools, prompt=True)
        except RenderError:
            return True
        return second.startswith(f"{first}x{self.stop}")

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _split(self, text: str) -> tuple[str, str]:
        """Returns the thought of a reply and its rest."""
        return self._thought_form.split(text, self.opens_thought)

    @property
    def _thought_form(self) -> ThoughtForm:
        form = self.thoughts or ThoughtForm()
        if form.start or form.end:
            return form
        # the template has no form for thoughts that the model writes all the same
        return ThoughtForm("<think>\n", "\n</think>\n\n", form.plain)

    def _with_opened_thought(self, reply: str, opened: str, thought: str, cut: str) -> str:
        """Returns a reply as it is sampled after a prompt that opened the thought, which most templates leave out."""
        if reply.startswith(opened):
            return reply[len(opened) :]
        return f"{self.program.with_cuts(thought, cut)}\n</think>\n\n{reply}"

    def _require_parseable(self, message: Message) -> None:
        hermes.require_parseable(message)
        if self.calls and (mark := self.calls.problem(message)):
            raise RenderError(
                f"the reply spells {mark} in {message.text[:60]!r}, which would be read back as a tool call: "
                "expected it in `calls` only: take it out of the text"
            )

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

    def _after(self, reply: str, messages: Sequence[Message], ended: str = "") -> tuple[str, str] | None:
        """Returns the text that the template puts after a reply and the token that `ended` it when messages follow,
        with its cut mark; None where the template changes the reply or what came before it."""
        cut = unused_mark([Message(Role.ASSISTANT, reply), *messages])
        sampled = tuple(call for said in self._structured(reply) for call in said.calls)
        ways = [(said, sampled) for said in self._ways(reply, cut)]
        if any(call.id for call in sampled):  # which the template may refuse, as it did not choose them
            ways += [(said, _without_ids(sampled)) for said, _ in ways]
        failed: RenderError | None = None  # of the last way to give the reply
        for said, calls in ways:
            tools = learned.TOOLS if isinstance(said, Message) else ()
            try:
                whole = self.program.render([*PROBE, said, *messages], cut, tools, prompt=True, sampled=calls)
                failed = None
            except RenderError as error:
                failed = error
                continue
            prompt = self.program.render(PROBE, cut, tools, prompt=True)
            tail = _remainder(whole, prompt + (reply if isinstance(said, Message) else said), cut)
            end = ended or (self.calls.stop if isinstance(said, Message) and self.calls else self.stop)
            if tail is not None and tail.startswith(end):
                return (tail.removeprefix(ended) if ended else tail), cut
        if failed is not None:
            raise failed
        return None

    def _ways(self, reply: str, cut: str) -> Iterator[str | Message]:
        """Yields a reply in each form in which the template may take it: as a text between cut marks, as a text, and as
        a message where it has a thought, which marks may hide from the template, or calls, which are no text to it."""
        thinks = self.thoughts is not None and bool(self.thoughts.start) and self.thoughts.start.strip() in reply
        if not thinks:
            yield from (f"{cut}{reply}{cut}", reply) if reply else ("",)
        yield from self._structured(reply)

    def _structured(self, reply: str) -> list[Message]:
        """Returns a reply with a thought or tool calls as the message that it is parsed into; for others, nothing."""
        try:
            thought, text = self._split(reply)
            text, calls = self.calls.parse(text) if self.calls else (text, ())
        except ActionError:
            return []
        return [Message(Role.ASSISTANT, text, thought, calls=calls)] if calls or text != reply else []

    def _find_stop(self) -> str:
        """Returns the first control token that the template puts after a reply, else the end-of-sequence token."""
        whole = self.program.render([*PROBE, f"{CUTS[0]}x{CUTS[0]}"], CUTS[0], prompt=False)
        _, _, tail = whole.rpartition(CUTS[0])
        places = {tail.find(text): text for text in self.codec.controls if text in tail}
        stop = places[min(places)] if places else self.codec.tokenizer.eos_token
        if not stop:
            raise RenderError(
                f"the chat template ends a reply with {tail!r}, which has no control token, and the tokenizer has no "
                "end-of-sequence token: expected one to stop at: use another model"
            )
        return stop

    def _encode(self, text: str, cut: str) -> IntArray:
        parts = [self.codec.encode([Piece(part, control=True)]) for part in text.split(cut)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _remainder(whole: str, kept: str, cut: str) -> str | None:
    """Returns what follows `kept` in `whole`, whose own cut marks do not count unless `kept` has them too; None where
    it does not begin with it."""
    if whole.startswith(kept):
        return whole[len(kept) :]
    wanted, place = kept.replace(cut, ""), 0
    for number, character in enumerate(whole):
        if place == len(wanted):
            return whole[number:].removeprefix(cut)
        if character == cut:
            continue
        if character != wanted[place]:
            return None
        place += 1
    return "" if place == len(wanted) else None


def _without_ids(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    return tuple(replace(call, id="") for call in calls)


def _content(message: Message) -> tuple[str, str, list[tuple[str, Mapping[str, Any]]]]:
    return message.text, message.thought, [(call.name, call.arguments) for call in message.calls]
