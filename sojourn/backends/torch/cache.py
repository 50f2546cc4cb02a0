"""The sampler's key/value cache: one slot per context, kept across turns and shared by prefix.

A slot holds the keys and values of one token sequence. A new prompt goes on in the idle slot that holds its beginning
and nothing else (the episode's own last turn), or takes a copy of the longest beginning that any other slot has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from sojourn.types import IntArray

PATIENCE = 4  # tokens: a request waits for a slot that is being filled only if that saves it more than this
STALE = -(2**62)  # the version of slots that weights since replaced have filled


class Layer(NamedTuple):
    keys: torch.Tensor  # (slots, kv_heads, length, head)
    values: torch.Tensor


class Shape(NamedTuple):
    """What one token leaves in one layer."""

    kv_heads: int
    key: int
    value: int

    def size(self, dtype: torch.dtype) -> int:
        """Bytes for each token."""
        return self.kv_heads * (self.key + self.value) * dtype.itemsize


class KeyValues:
    """The tensors of all slots. A slot's memory is first touched when the slot is first used."""

    def __init__(
        self, shapes: Sequence[Shape], slots: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._opened: set[int] = set()
        self.layers = [
            Layer(
                torch.empty(slots, shape.kv_heads, length, shape.key, dtype=dtype, device=device),
                torch.empty(slots, shape.kv_heads, length, shape.value, dtype=dtype, device=device),
            )
            for shape in shapes
        ]

    def open(self, slot: int) -> None:
        """Makes a slot safe to read beyond what is written: masked positions weigh nothing, but NaN * 0 is NaN."""
        if slot in self._opened:
            return
        self._opened.add(slot)
        for layer in self.layers:
            layer.keys[slot].zero_()
            layer.values[slot].zero_()

    def copy(self, source: int, target: int, length: int) -> None:
        for layer in self.layers:
            layer.keys[target, :, :length] = layer.keys[source, :, :length]
            layer.values[target, :, :length] = layer.values[source, :, :length]


class Claim(NamedTuple):
    """A slot for a request, of whose prompt the first `reused` tokens are there, or to be copied from `donor`."""

    slot: int
    reused: int
    donor: int | None = None


class Wait:
    """The prompt shares a longer beginning with a slot that is still being filled: ask again after the next step."""


WAIT = Wait()


@dataclass
class Slots:
    """What every slot holds, in numbers only: who may go on where, and what can be shared."""

    count: int
    length: int
    tokens: IntArray = field(init=False)  # (count, length)
    known: IntArray = field(init=False)  # tokens that the slot's sequence has so far
    filled: IntArray = field(init=False)  # of those, the ones whose keys and values are computed
    busy: np.ndarray = field(init=False)
    version: IntArray = field(init=False)  # of the weights that computed the first of them
    _used: IntArray = field(init=False)
    _clock: int = 0

    def __post_init__(self) -> None:
        self.tokens = np.full((self.count, self.length), -1, dtype=np.int64)
        self.known, self.filled, self.version, self._used = (np.zeros(self.count, dtype=np.int64) for _ in range(4))
        self.busy = np.zeros(self.count, dtype=bool)

    def claim(self, prompt: IntArray, version: int, *, reuse: bool = True) -> Claim | Wait | None:
        """A slot for this prompt, now busy; None where all are busy. The last token is always left to compute."""
        if self.busy.all():
            return None
        common = self._common(prompt, version) if reuse else np.zeros(self.count, dtype=np.int64)
        ready = np.minimum(common, self.filled)
        donor = int(ready.argmax())
        best = int(ready[donor])
        if (np.where(self.busy, common, 0) - best).max() > PATIENCE:
            return WAIT
        own = np.flatnonzero(~self.busy & (self.filled > 0) & (ready == self.filled) & (ready == best))
        if len(own):
            claim = Claim(int(own[0]), best)
        else:
            slot = self._victim(donor if best else -1)
            claim = Claim(slot, best, None if slot == donor or not best else donor)
        self._take(claim, prompt, version)
        return claim

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        """Sampled tokens, not computed yet."""
        begin = int(self.known[slot])
        self.tokens[slot, begin : begin + len(tokens)] = tokens
        self.known[slot] = begin + len(tokens)

    def release(self, slot: int, version: int) -> None:
        """Keeps what the slot holds for whoever shares its beginning, unless other weights computed it."""
        self._clock += 1
        self.busy[slot], self._used[slot] = False, self._clock
        self.known[slot] = self.filled[slot]
        if self.version[slot] != version:
            self.forget(slot)

    def forget(self, slot: int) -> None:
        """Nothing in this slot is computed any more. A busy one keeps its tokens."""
        self.filled[slot] = 0
        if not self.busy[slot]:
            self.known[slot] = 0

    def outdate(self) -> None:
        """The weights have changed: idle slots are emptied, and what busy ones hold is shared no more."""
        self.version[:] = STALE
        for slot in np.flatnonzero(~self.busy):
            self.forget(int(slot))

    def _common(self, prompt: IntArray, version: int) -> IntArray:
        """How many tokens of the prompt, but the last, each slot begins with: (count,)."""
        width = len(prompt) - 1
        common = np.zeros(self.count, dtype=np.int64)
        if width == 0:
            return common
        alike = np.flatnonzero((self.known > 0) & (self.version == version) & (self.tokens[:, 0] == prompt[0]))
        if len(alike):
            differs = self.tokens[alike, :width] != prompt[:width]
            first = np.where(differs.any(axis=1), differs.argmax(axis=1), width)
            common[alike] = np.minimum(first, self.known[alike])
        return common

    def _victim(self, donor: int) -> int:
        """The first empty slot, else the one that was idle for longest, the donor last of all."""
        idle = np.flatnonzero(~self.busy)
        empty = idle[self.filled[idle] == 0]
        if len(empty):
            return int(empty[0])
        return int(min(idle, key=lambda slot: (slot == donor, self._used[slot])))

    def _take(self, claim: Claim, prompt: IntArray, version: int) -> None:
        slot = claim.slot
        self._clock += 1
        self.tokens[slot, : len(prompt)] = prompt
        self.known[slot], self.filled[slot] = len(prompt), claim.reused
        self.version[slot], self.busy[slot] = version, True
        self._used[slot] = self._clock
        if claim.donor is not None:
            self._used[claim.donor] = self._clock
