"""Masks what clients send again and again, once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

CHARACTERS = 1 << 22  # of texts that are held
EACH = 64  # characters more that each counts for


@dataclass(eq=False)
class MasksOnce:
    """Masks texts, and remembers the latest of those in which nothing is to be masked: a client sends the whole
    conversation with each request. What has something private is not held, and masked each time."""

    mask: Callable[[str], str]
    characters: int = CHARACTERS
    _clean: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    _held: int = 0

    def __call__(self, text: str) -> str:
        if text in self._clean:
            self._clean.move_to_end(text)
            return text
        masked = self.mask(text)
        if masked == text:
            self._clean[text] = None
            self._held += len(text) + EACH
            while self._held > self.characters:
                self._held -= len(self._clean.popitem(last=False)[0]) + EACH
        return masked
