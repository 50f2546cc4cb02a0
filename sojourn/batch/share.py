"""Prefix sharing: the sequences of a batch as a tree, in which tokens with the same past stand once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sojourn.types import Batch, IntArray


class Run(NamedTuple):
    """Nodes `start` to `stop`, one after another, and the runs of nodes that come before them, from the root on."""

    start: int
    stop: int
    before: tuple[tuple[int, int], ...]

    @property
    def depth(self) -> int:
        """How many nodes come before."""
        return sum(stop - start for start, stop in self.before)


class Tree(NamedTuple):
    """M nodes for N tokens; a node's hidden state depends on nothing but its path from the root, so it serves all."""

    tokens: IntArray  # (M,)
    positions: IntArray  # (M,) the depth of each node
    node: IntArray  # (N,) where each token of the batch stands
    runs: tuple[Run, ...]


def order(batch: Batch) -> list[int]:
    """The sequences sorted by their tokens, so that neighbours share the longest prefixes."""

    def key(s: int) -> tuple[tuple[str, ...], bytes]:
        tokens = batch.tokens[batch.starts[s] : batch.starts[s + 1]]
        return (batch.images[s] if batch.images else ()), tokens.astype(">u8").tobytes()

    return sorted(range(len(batch.starts) - 1), key=key)


def common(one: IntArray, other: IntArray) -> int:
    """The length of the common prefix."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length


def parts(batch: Batch, budget: int) -> Iterator[IntArray]:
    """The batch's sequences in shares of at most `budget` nodes (or of one sequence), by their numbers."""
    held: list[int] = []
    nodes, last = 0, np.zeros(0, dtype=np.int64)
    for s in order(batch):
        own = batch.tokens[batch.starts[s] : batch.starts[s + 1]]
        fresh = len(own) - common(last, own)
        if held and nodes + fresh > budget:
            yield np.array(held)
            held, nodes, fresh = [], 0, len(own)
        held.append(s)
        nodes, last = nodes + fresh, own
    if held:
        yield np.array(held)


def merge(batch: Batch) -> Tree:
    """Merges the equal prefixes of one sequence or more.

    Sequences with different images share nothing: equal placeholders hide unequal pixels.
    """
    node = np.zeros(len(batch), dtype=np.int64)
    runs: list[Run] = []
    columns: list[tuple[IntArray, IntArray]] = []
    count, last = 0, slice(0, 0)
    images: tuple[str, ...] = ()
    for s in order(batch):
        own = slice(int(batch.starts[s]), int(batch.starts[s + 1]))
        shown = batch.images[s] if batch.images else ()
        shared = common(batch.tokens[last], batch.tokens[own]) if shown == images else 0
        before, length = node[last][:shared], own.stop - own.start
        fresh = np.arange(count, count + length - shared)
        node[own] = np.concatenate([before, fresh])
        if len(fresh):
            runs.append(Run(count, count + len(fresh), _spans(before)))
            columns.append((batch.tokens[own][shared:], np.arange(shared, length)))
        count, last, images = count + len(fresh), own, shown
    tokens, positions = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Tree(tokens, positions, node, tuple(runs))


def _spans(nodes: IntArray) -> tuple[tuple[int, int], ...]:
    """Consecutive numbers, as (start, stop) pairs."""
    pieces = np.split(nodes, np.flatnonzero(np.diff(nodes) != 1) + 1)
    return tuple((int(piece[0]), int(piece[-1]) + 1) for piece in pieces if len(piece))
