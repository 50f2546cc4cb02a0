"""Chat formats whose turns stand between markers, bound to a tokenizer: what ChatML and Gemma share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from sojourn.render import hermes
from sojourn.render.marks import Marks
from sojourn.render.partial import PartialReply
from sojourn.render.text import Codec, Piece, refuse_images
from sojourn.types import IntArray, Message, Prompt, Role, Sample, Tool


@dataclass(frozen=True)
class Turns:
    """A renderer (see `sojourn.protocols.Renderer`).

    The newline after a turn's end is not sampled, so it belongs to the context of the next sample. A sample without an
    end marker (it was cut off, or was a choice) is closed by the context that extends it.
    """

    marks: Marks
    codec: Codec
    stops: tuple[int, ...]
    thinking: bool = False
    note: str = ""  # says why this format was chosen, where `auto` did

    def open(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt:
        turns = self._turns(messages, tools)
        return Prompt(self.codec.encode([Piece(self.marks.beginning, control=True), *turns, *self._header()]))

    def extend(self, last: Sample, messages: Sequence[Message]) -> Prompt | None:
        closed = len(last.tokens) > 0 and int(last.tokens[-1]) in self.stops
        pieces = [] if closed else [Piece(self.marks.end, control=True)]
        pieces.append(Piece("\n", control=True))
        return Prompt(self.codec.encode([*pieces, *self._turns(messages, ()), *self._header()]))

    def parse(self, tokens: Sequence[int]) -> Message:
        reply = [int(token) for token in tokens]
        if reply and reply[-1] in self.stops:
            reply.pop()
        return hermes.parse_reply(self.decode(reply), self.thinking)

    def parse_partial(self, text: str, *, ended: bool = False) -> PartialReply:
        return hermes.parse_partial(text, self.thinking, ended=ended)

    def encode_reply(self, message: Message) -> list[int]:
        hermes.require_parseable(message)
        refuse_images(message.images, message.role)
        pieces = [*hermes.render_reply(message, self.thinking), Piece(self.marks.end, control=True)]
        return self.codec.encode(pieces).tolist()

    def decode(self, tokens: Sequence[int] | IntArray) -> str:
        return self.codec.decode(tokens)

    @property
    def chat_template(self) -> str:
        """Returns the format as a chat template, which goes with a model that is exported."""
        return self.marks.chat_template(self.thinking)

    def _header(self) -> list[Piece]:
        """Returns the header of the assistant's turn, after which the model samples."""
        opening = [Piece("<think>\n", control=True)] if self.thinking else []
        return [Piece(f"{self.marks.start}{self.marks.names[Role.ASSISTANT]}\n", control=True), *opening]

    def _turns(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Piece]:
        """Returns whole turns, each with the newline after it. Tools are declared in the first, a system message."""
        if tools and not (messages and messages[0].role is Role.SYSTEM):
            messages = [Message(Role.SYSTEM), *messages]
        pieces: list[Piece] = []
        for name, group in groupby(enumerate(messages), key=lambda item: self._turn_key(*item)):
            parts = [self._body(message, tools if number == 0 else ()) for number, message in group]
            header = self._header() if name[0] is Role.ASSISTANT else [Piece(f"{self.marks.start}{name[1]}\n", True)]
            body = [piece for number, part in enumerate(parts) for piece in ([self._between] if number else []) + part]
            pieces += [*header, *body, Piece(self.marks.end, control=True), Piece("\n", control=True)]
        return pieces

    @property
    def _between(self) -> Piece:
        return Piece(self.marks.between, control=True)

    def _turn_key(self, number: int, message: Message) -> tuple[Role, str, int]:
        """Returns a key that is equal for consecutive messages that share a turn."""
        merged = message.role in self.marks.merged
        role = self.marks.merged[0] if merged else message.role
        return role, self.marks.names[message.role], -1 if merged else number

    def _body(self, message: Message, tools: Sequence[Tool]) -> list[Piece]:
        refuse_images(message.images, message.role)
        if message.role is Role.ASSISTANT:
            return hermes.render_reply(message, self.thinking)
        if message.role is Role.TOOL:
            return hermes.render_answer(message.text)
        if not tools:
            return [Piece(message.text)]
        return [
            Piece(message.text),
            *([Piece("\n\n", control=True)] if message.text else []),
            *hermes.render_tools(tools),
        ]
