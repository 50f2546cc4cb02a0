"""Masks what clients send again and again, once."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

SHORT = 64  # characters: what is shorter is masked as fast as it is looked up
CHARACTERS = 1 << 22  # of masked texts that are held


@dataclass(eq=False)
class KnownTexts:
    """Remembers what became of the latest texts that were masked, by their digests: a client sends the whole
    conversation with each request."""

    characters: int = CHARACTERS
    _known: OrderedDict[bytes, str] = field(default_factory=OrderedDict[bytes, str])
    _held: int = 0

    def masked(self, text: str, mask: Callable[[str], str]) -> str:
        """Returns what `mask` makes of a text, or made of it before."""
        if len(text) < SHORT:
            return mask(text)
        digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
        found = self._known.get(digest)
        if found is None:
            found = self._known[digest] = mask(text)
            self._held += len(found)
        self._known.move_to_end(digest)
        while self._held > self.characters:
            self._held -= len(self._known.popitem(last=False)[1])
        return found
