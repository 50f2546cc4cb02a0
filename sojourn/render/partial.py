"""Reads a reply while it is sampled: as much of its thought and text as no further token can change.

What is read never holds the beginning of what may become a tool call, the end of a thought, a stop string or a
character, nor white space that would be removed around these. So the thought and the text of the whole reply begin with
what was read of its beginning, to the letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from sojourn.ability import Ability
from sojourn.protocols import Renderer
from sojourn.render import pieces
from sojourn.render.text import Codec, HasCodec

UNKNOWN = "\ufffd"  # what bytes are decoded to that are no character, or not yet
CONCATENATING = frozenset({"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Sequence", "Strip"})
LONGEST_CHARACTER = 4  # bytes of a character, which may be tokens
LONGEST_WAIT = 256  # tokens that give no whole character; a reply with more in a row is not read before its end


class PartialReply(NamedTuple):
    """Holds what is known of a reply: the beginning of its thought, and of its text."""

    thought: str = ""
    text: str = ""


@runtime_checkable
class ReadsPartialReplies(Ability, Protocol):
    """A renderer that can read a reply before its end.

    `parse_partial` returns the beginnings of the thought and of the text of every reply whose text begins with `text`,
    whatever follows. With `ended`, it reads a whole reply that `parse` refuses: an unclosed thought is a thought, and
    what was to be a call is text.
    """

    def parse_partial(self, text: str, *, ended: bool = False) -> PartialReply: ...


@dataclass
class PartialReader:
    """Reads one reply as its tokens come; `stop_strings` end its text and are no part of it. It reads nothing where the
    renderer cannot read before the end, or where its tokenizer may decode a token otherwise when others follow."""

    renderer: Renderer
    stop_strings: Sequence[str] = ()
    reply: PartialReply = field(default_factory=PartialReply)
    _decoder: GrowingText | None = field(init=False)

    def __post_init__(self) -> None:
        renderer = self.renderer
        self._decoder = None
        if isinstance(renderer, ReadsPartialReplies) and isinstance(renderer, HasCodec):
            stops = frozenset(renderer.stops)
            self._decoder = GrowingText(renderer.codec, stops) if GrowingText.reads(renderer.codec) else None

    def add(self, tokens: Sequence[int]) -> PartialReply:
        """Takes the next tokens of the reply; returns all that can be read so far."""
        renderer = self.renderer
        if self._decoder is not None and self._decoder.add(tokens) and isinstance(renderer, ReadsPartialReplies):
            read = renderer.parse_partial(self._decoder.text)
            self.reply = PartialReply(read.thought, before_stop_strings(read.text, self.stop_strings))
        return self.reply


@dataclass
class GrowingText:
    """Decodes tokens as they come. `text` is what they say as far as no further token changes it: the bytes of a
    character may be those of several tokens, and a token that ends the reply is no part of it."""

    codec: Codec
    stops: frozenset[int]
    text: str = ""
    _before: list[int] = field(default_factory=list[int])  # the last tokens whose text is known
    _waiting: list[int] = field(default_factory=list[int])

    @staticmethod
    def reads(codec: Codec) -> bool:
        """Returns whether the tokenizer decodes tokens one after another, so that the text only grows."""
        kinds = pieces.decoder_kinds(codec.tokenizer)
        return bool(kinds) and kinds <= CONCATENATING

    def add(self, tokens: Sequence[int]) -> bool:
        """Takes the next tokens; returns whether the text has grown."""
        if len(self._waiting) > LONGEST_WAIT:
            return False
        self._waiting += tokens
        count = len(self._waiting)
        while count and self._may_change(self._waiting[count - 1]):
            count -= 1
        known = self.codec.decode(self._before)
        for settled in range(count, max(count - LONGEST_CHARACTER, 0), -1):
            whole = self.codec.decode([*self._before, *self._waiting[:settled]])
            if not whole.endswith(UNKNOWN) and whole.startswith(known):
                self.text += whole[len(known) :]
                self._settle(settled)
                return len(whole) > len(known)
        return False

    def _settle(self, count: int) -> None:
        """Takes note that the text of the next tokens is known. A decoder may drop a blank at the beginning, so that
        there are always tokens with a text before those that are decoded."""
        settled, self._waiting = self._waiting[:count], self._waiting[count:]
        self._before = settled if self.codec.decode(settled) else self._before + settled

    def _may_change(self, token: int) -> bool:
        """Returns whether what a token says depends on those after it: a stop token ends a reply where none follows,
        and a single byte is decoded together with the bytes beside it."""
        return token in self.stops or pieces.is_byte(self.codec.tokenizer.convert_ids_to_tokens(token))


def before_stop_strings(text: str, stop_strings: Sequence[str]) -> str:
    """Returns the text before the first stop string, and before what may become one."""
    return text[: min((_before_stop(text, stop) for stop in stop_strings if stop), default=len(text))]


def _before_stop(text: str, stop: str) -> int:
    """Returns where a stop string begins, or where one may begin that is not whole yet."""
    if (place := text.find(stop)) >= 0:
        return place
    sizes = range(min(len(stop) - 1, len(text)), 0, -1)
    return len(text) - next((size for size in sizes if text.endswith(stop[:size])), 0)


def before_mark(text: str, mark: str) -> str:
    """Returns the text before what, at its end, may become a mark, with white space anywhere in it; without the white
    space before that. The whole mark is not searched."""
    wanted, found = "".join(mark.split()), ""
    at = end = len(text.rstrip())
    while at and len(found) < len(wanted) - 1:
        at -= 1
        if not text[at].isspace():
            found = text[at] + found
            end = at if wanted.startswith(found) else end
    return text[:end].rstrip()


def thought_so_far(text: str, mark: str) -> str:
    """Returns what is known of a thought that ends at a mark, which has not come yet."""
    return before_mark(text, mark).lstrip()


def text_so_far(text: str, mark: str, place: int | None) -> str:
    """Returns what is known of the text of a reply whose calls begin with a mark, which stands at `place` (None: it has
    not come yet). Nothing is known of a text that begins with white space, which calls would remove."""
    if text[:1].isspace():
        return ""
    return before_mark(text, mark) if place is None else text[:place].rstrip()
