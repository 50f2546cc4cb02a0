"""Finds which of a reply's tokens hold its thought, and which hold its text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from sojourn.protocols import Renderer
from sojourn.render import pieces
from sojourn.render.partial import ReadsPartialReplies
from sojourn.render.text import HasCodec
from sojourn.types import IntArray


class Parts(NamedTuple):
    """Holds the bytes of each token of a reply, and the ranges of tokens that hold a part of its thought and of its
    text. A token that holds the end of one and a mark of the format beside it is counted."""

    pieces: tuple[bytes, ...] = ()
    thought: range = range(0)
    text: range = range(0)


def parts_of(renderer: Renderer, tokens: IntArray, thought: str, text: str) -> Parts:
    """Returns which tokens of a reply hold its thought and its text, each of which may be empty. Where the bytes of the
    text are not found among those of the tokens, as some are no character, it is all that follows the thought, but for
    the token that ends the reply."""
    if not isinstance(renderer, HasCodec):
        return Parts()
    written = pieces.bytes_of(renderer.codec, tokens)
    whole, ends = b"".join(written), list(accumulate(map(len, written), initial=0))
    thinking = _holding(ends, _found(whole, thought, 0))
    if not text:
        return Parts(written, thinking)
    first = max(thinking.stop, _first_of_text(renderer, tokens))
    closed = int(tokens[-1]) in renderer.stops
    saying = _holding(ends, _found(whole, text, ends[first])) or range(first, len(tokens) - closed)
    return Parts(written, thinking, saying)


def _found(whole: bytes, part: str, begin: int) -> range:
    """Returns the bytes that are a part of a reply, searched from `begin` on; none where it is not found."""
    data = part.encode()
    at = whole.find(data, begin) if data else -1
    return range(at, at + len(data)) if at >= 0 else range(0)


def _holding(ends: Sequence[int], found: range) -> range:
    """Returns the tokens that hold some of these bytes; `ends` are the places where tokens end, after a zero."""
    if not found:
        return range(0)
    first = bisect_left(ends, found.start + 1) - 1
    return range(first, bisect_left(ends, found.stop))


def _first_of_text(renderer: Renderer, tokens: IntArray) -> int:
    """Returns the number of the first token before which a reply has no text: a short text may be spelled by a mark of
    the format, too."""
    if not (isinstance(renderer, ReadsPartialReplies) and isinstance(renderer, HasCodec)):
        return 0
    codec = renderer.codec

    def has_text(count: int) -> bool:
        return bool(renderer.parse_partial(codec.decode(tokens[:count]), ended=True).text)

    return max(bisect_left(range(len(tokens) + 1), True, key=has_text) - 1, 0)
