"""Tokenises text such that text of people and models can never become a control token.

A rendering is a list of pieces, each tokenised by itself: so token boundaries are the same whether a conversation grew
turn by turn or is rendered at once. Only pieces marked `control` may contain the tokens that structure a chat. In other
pieces, every spelling of such a token is cut after its first character, so that the tokenizer cannot recognise it. The
decoded text is the same, unless the tokenizer itself loses characters: SmolLM2's has no token for six control
characters, nor for the planes of Unicode from 4 on, and drops them; and half a surrogate pair, which is no character,
becomes a question mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from sojourn.ability import Ability
from sojourn.errors import RenderError
from sojourn.types import IntArray, Role

CONTROL_FORM = re.compile(r"<\|.*\|>|<(start|end)_of_\w+>")  # control tokens that some tokenizers do not call special


CACHED_PIECES, CACHED_CHARS = 1024, 2000  # the cache holds pieces up to this length, as formats and groups repeat them


class Piece(NamedTuple):
    text: str
    control: bool = False


@dataclass(frozen=True)
class Codec:
    """A tokenizer with its control tokens, which structure a chat: its special tokens, added tokens of a similar form,
    and those of `markers` that it has."""

    tokenizer: Any
    markers: tuple[str, ...] = ()
    controls: dict[str, int] = field(init=False, repr=False)
    spelled: re.Pattern[str] | None = field(init=False, repr=False)
    _tokens: Callable[[Piece], tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.tokenizer is None:
            raise RenderError("this model has no tokenizer: expected one beside its weights: add its tokenizer.json")
        fast = getattr(self.tokenizer, "backend_tokenizer", None)
        if fast is not None:  # as the wrapper's own encode does: a prompt is neither cut nor padded
            fast.no_truncation()
            fast.no_padding()
        added: dict[str, int] = self.tokenizer.get_added_vocab()
        wanted = {*self.tokenizer.all_special_tokens, *self.markers}
        wanted |= {token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special}
        controls = {text: number for text, number in added.items() if text in wanted or CONTROL_FORM.fullmatch(text)}
        # A lookahead finds spellings that overlap, too.
        spellings = "|".join(re.escape(text) for text in sorted(controls, key=len, reverse=True) if len(text) > 1)
        object.__setattr__(self, "controls", controls)
        object.__setattr__(self, "spelled", re.compile(f"(?={spellings})") if spellings else None)
        object.__setattr__(self, "_tokens", lru_cache(CACHED_PIECES)(self._encode))

    def token(self, text: str) -> int:
        """Returns the id of a token that the format requires; raises `RenderError` if the tokenizer lacks it."""
        number = self.tokenizer.convert_tokens_to_ids(text)
        if number is None or self.tokenizer.convert_ids_to_tokens(number) != text:
            raise RenderError(
                f"the tokenizer has no token {text!r}, which this chat format needs: expected it as one token: "
                "use another renderer, such as 'template', or another model"
            )
        return int(number)

    def encode(self, pieces: Iterable[Piece]) -> IntArray:
        tokens: list[int] = []
        for piece in pieces:
            tokens += (self._tokens if len(piece.text) <= CACHED_CHARS else self._encode)(piece)
        return np.asarray(tokens, dtype=np.int64)

    def _encode(self, piece: Piece) -> tuple[int, ...]:
        return tuple(self.control(piece.text) if piece.control else self.plain(piece.text))

    def control(self, text: str) -> list[int]:
        if not text:
            return []
        if (fast := getattr(self.tokenizer, "backend_tokenizer", None)) is not None:  # a tenth of the wrapper's time
            try:
                return fast.encode(text, add_special_tokens=False).ids
            except TypeError:  # half a surrogate pair, as in Python's name of a file that is not in UTF-8
                return fast.encode(text.encode(errors="replace").decode(), add_special_tokens=False).ids
        return self.tokenizer.encode(text, add_special_tokens=False, verbose=False)

    def plain(self, text: str) -> list[int]:
        tokens: list[int] = []
        for part in self.cut(text):
            tokens += self.control(part)
        if controls_found := set(self.controls.values()).intersection(tokens):
            token = self.tokenizer.convert_ids_to_tokens(min(controls_found))
            raise RenderError(
                f"the text {text[:80]!r} gives the control token {token!r}: "
                "expected plain tokens: take that spelling out of the text"
            )
        return tokens

    def cut(self, text: str) -> list[str]:
        """Splits the text into parts that spell no control token."""
        if self.spelled is None:
            return [text]
        edges = [0, *(match.start() + 1 for match in self.spelled.finditer(text)), len(text)]
        return [text[start:end] for start, end in pairwise(edges)]

    def decode(self, tokens: Sequence[int] | IntArray) -> str:
        """Returns the text of tokens, control tokens included."""
        numbers = [int(token) for token in tokens]
        if (fast := getattr(self.tokenizer, "backend_tokenizer", None)) is not None:  # a quarter of the wrapper's time
            return fast.decode(numbers, skip_special_tokens=False)
        return self.tokenizer.decode(numbers, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def refuse_images(images: Sequence[str], role: Role) -> None:
    if images:
        raise RenderError(
            f"a {role} message shows {len(images)} images, but this chat format has text only: "
            "expected no images: use a renderer and a model that see"
        )


@runtime_checkable
class HasCodec(Ability, Protocol):
    """A renderer that keeps its tokenizer in a `Codec`."""

    @property
    def codec(self) -> Codec: ...
