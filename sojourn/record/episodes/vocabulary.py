"""Stores the tokens of a run's tokenizer in its folder, so that they can be shown without loading the model.

`vocabulary.json` holds the bytes of every token by its id, as text in which each character is one byte (Latin-1), and
the ids of the tokens that structure a chat.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sojourn.errors import RecordError
from sojourn.files import read_bytes
from sojourn.record.atomic import write_bytes

NAME = "vocabulary.json"


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of each token, None for unused ids; `special` are the tokens that structure a chat."""

    pieces: tuple[bytes | None, ...]
    special: frozenset[int] = frozenset()

    def raw(self, token: int) -> bytes:
        """Returns the bytes of one token, which may be part of a character; an unused id becomes `<id>`."""
        piece = self.pieces[token] if 0 <= token < len(self.pieces) else None
        return f"<{token}>".encode() if piece is None else piece

    def text(self, tokens: Iterable[int]) -> str:
        """Returns the text of tokens; bytes that are no character are shown as \\xe2."""
        return b"".join(self.raw(int(token)) for token in tokens).decode(errors="backslashreplace")

    def parts(self, tokens: Sequence[int]) -> list[str]:
        """Returns the text of each token; a character of several tokens belongs to the last of them."""
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        last = len(tokens) - 1
        return [decoder.decode(self.raw(int(token)), final=at == last) for at, token in enumerate(tokens)]


def write(folder: Path, vocabulary: Vocabulary) -> None:
    """Writes a vocabulary to a run folder."""
    pieces = [None if piece is None else piece.decode("latin-1") for piece in vocabulary.pieces]
    data = {"pieces": pieces, "special": sorted(vocabulary.special)}
    write_bytes(folder / NAME, json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode())


def read(folder: Path) -> Vocabulary | None:
    """Returns the vocabulary of a run, None if it has none; raises RecordError if it is damaged."""
    path = folder / NAME
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        return None
    return _read(path.resolve(), changed)


@lru_cache(4)
def _read(path: Path, changed: int) -> Vocabulary:
    try:
        data = json.loads(read_bytes(path))
        pieces = tuple(None if piece is None else piece.encode("latin-1") for piece in data["pieces"])
        return Vocabulary(pieces, frozenset(map(int, data["special"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(
            f"{path} cannot be read ({error}): the file is damaged, restore it from a copy or delete it"
        ) from error
