"""The bytes of each token of a tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from sojourn.protocols import Renderer
from sojourn.record.episodes.vocabulary import Vocabulary
from sojourn.render.text import Codec, HasCodec

BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def vocabulary(codec: Codec) -> Vocabulary:
    """Returns the bytes of each token, by the kind of the tokenizer's decoder: byte-level letters or byte fallback.

    With other decoders, a token's bytes are those of the text that it decodes to by itself.
    """
    read, added = _reader(codec.tokenizer), codec.tokenizer.get_added_vocab()
    words: dict[str, int] = codec.tokenizer.get_vocab()
    pieces: list[bytes | None] = [None] * (max(words.values(), default=-1) + 1)
    for text, number in words.items():
        pieces[number] = text.encode() if text in added else read(text)
    return Vocabulary(tuple(pieces), frozenset(codec.controls.values()))


def bytes_of(codec: Codec, tokens: Iterable[int]) -> tuple[bytes, ...]:
    """Returns the bytes of each of some tokens, as `vocabulary` has them; none for a number that is no token."""
    read, added = _reader(codec.tokenizer), codec.tokenizer.get_added_vocab()
    texts = codec.tokenizer.convert_ids_to_tokens([int(token) for token in tokens])
    return tuple(b"" if text is None else text.encode() if text in added else read(text) for text in texts)


def _reader(tokenizer: Any) -> Callable[[str], bytes]:
    """Returns what makes bytes of the text by which a tokenizer names a token."""
    kinds = decoder_kinds(tokenizer)
    if "ByteLevel" in kinds:
        return _spelled
    return _fallback if "ByteFallback" in kinds else _decoded(tokenizer)


def of(renderer: Renderer) -> Vocabulary | None:
    """Returns the vocabulary of a renderer that has a `Codec`, else None."""
    if isinstance(renderer, HasCodec) and isinstance(renderer.codec, Codec):
        return vocabulary(renderer.codec)
    return None


def is_byte(text: str | None) -> bool:
    """Returns whether the text of a token stands for a byte, as tokenizers with byte fallback write it."""
    return text is not None and BYTE.fullmatch(text) is not None


def decoder_kinds(tokenizer: Any) -> set[str]:
    """Returns the kinds of the tokenizer's decoder and of its parts; none where it has no such decoder."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return set()
    config = json.loads(decoder.__getstate__())
    return {config["type"], *(part["type"] for part in config.get("decoders", ()))}


@cache
def byte_letters() -> dict[str, int]:
    """Returns the byte of each letter of GPT-2's tokenizer: printable bytes stand for themselves, others follow."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def _spelled(text: str) -> bytes:
    letters = byte_letters()
    return bytes(letters[letter] for letter in text) if all(c in letters for c in text) else text.encode()


def _fallback(text: str) -> bytes:
    byte = BYTE.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()


def _decoded(tokenizer: Any) -> Callable[[str], bytes]:
    return lambda text: tokenizer.convert_tokens_to_string([text]).encode()
