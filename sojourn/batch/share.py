"""Shares prefixes: the sequences of a batch become a tree, in which tokens with the same past are one node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from sojourn.types import Batch, IntArray


class Segment(NamedTuple):
    """The consecutive nodes `start` to `stop`, and the spans of nodes that precede them, from the root on."""

    start: int
    stop: int
    before: tuple[tuple[int, int], ...]


class Tree(NamedTuple):
    """M nodes for N tokens, depth first. Sequences with the same beginning share its nodes."""

    tokens: IntArray  # (M,)
    positions: IntArray  # (M,) the depth of each node
    node: IntArray  # (N,) the node of each token of the batch
    segments: tuple[Segment, ...]

    @property
    def ends(self) -> IntArray:
        """Returns where the descendants of each node end: (M,). In depth-first order they directly follow the node."""
        ends = np.arange(1, len(self.tokens) + 1)
        for segment in self.segments:
            for start, stop in (*segment.before, (segment.start, segment.stop)):
                ends[start:stop] = segment.stop
        return ends


def order(batch: Batch) -> list[int]:
    """Returns the sequences sorted by their tokens, so that neighbours share the longest prefixes."""

    def key(s: int) -> tuple[tuple[str, ...], bytes]:
        tokens = batch.tokens[batch.offsets[s] : batch.offsets[s + 1]]
        return (batch.images[s] if batch.images else ()), tokens.astype(">u8").tobytes()

    return sorted(range(len(batch.offsets) - 1), key=key)


def _shared(batch: Batch, one: int, other: int) -> int:
    """Returns the length of the common prefix of two sequences.

    Sequences with different images share nothing, since equal placeholder tokens may stand for different pixels.
    """
    if batch.images and batch.images[one] != batch.images[other]:
        return 0
    first, second = (batch.tokens[batch.offsets[s] : batch.offsets[s + 1]] for s in (one, other))
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


class Sequenced(NamedTuple):
    """A sequence of the sorted batch: its number, its length, and how many first tokens the one before has, too."""

    sequence: int
    length: int
    shared: int


def in_order(batch: Batch) -> list[Sequenced]:
    """Returns the sequences of a batch in `order`."""
    sequences: list[Sequenced] = []
    for s in order(batch):
        shared = _shared(batch, sequences[-1].sequence, s) if sequences else 0
        sequences.append(Sequenced(s, int(batch.offsets[s + 1] - batch.offsets[s]), shared))
    return sequences


def micro_batches(sequences: Sequence[Sequenced], budget: float) -> Iterator[list[Sequenced]]:
    """Divides the sequences into micro-batches of at most `budget` nodes, or of one sequence.

    Tokens that two micro-batches share are computed in both. So a full one is cut, within its second half, where
    neighbours share the fewest: between groups or episodes rather than between two turns of one episode.
    """
    held: list[Sequenced] = []
    nodes = 0
    for sequence in sequences:
        nodes += sequence.length - (sequence.shared if held else 0)
        held.append(sequence)
        while len(held) > 1 and nodes > budget:
            cut = _cut(held, budget)
            yield held[:cut]
            held = held[cut:]
            nodes = node_counts(held)[-1]
    if held:
        yield held


def node_counts(sequences: Sequence[Sequenced]) -> list[int]:
    """Returns, for each k, how many nodes a micro-batch of the first k sequences has."""
    return list(accumulate([sequences[0].length, *(s.length - s.shared for s in sequences[1:])]))


def _cut(held: Sequence[Sequenced], budget: float) -> int:
    """Returns how many of the sequences to put into the next micro-batch; with the last one they exceed `budget`."""
    able = [count for count, size in enumerate(node_counts(held)[:-1], 1) if 2 * size > budget] or [len(held) - 1]
    return min(reversed(able), key=lambda count: held[count].shared)


def merge(batch: Batch) -> Tree:
    """Returns the tree of a batch: equal prefixes of its sequences are merged."""
    node = np.zeros(len(batch), dtype=np.int64)
    segments: list[Segment] = []
    columns: list[tuple[IntArray, IntArray]] = []
    count, last = 0, None
    for s in order(batch):
        start, stop = int(batch.offsets[s]), int(batch.offsets[s + 1])
        shared = _shared(batch, last, s) if last is not None else 0
        before = node[batch.offsets[last] :][:shared] if last is not None else node[:0]
        fresh = np.arange(count, count + stop - start - shared)
        node[start:stop] = np.concatenate([before, fresh])
        if len(fresh):
            segments.append(Segment(count, count + len(fresh), _spans(before)))
            columns.append((batch.tokens[start + shared : stop], np.arange(shared, stop - start)))
        count, last = count + len(fresh), s
    tokens, positions = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Tree(tokens, positions, node, tuple(segments))


def line(length: int) -> Tree:
    """Returns the tree of one sequence of zeros, for measurements of memory."""
    place = np.arange(length)
    return Tree(np.zeros_like(place), place, place, (Segment(0, length, ()),))


def _spans(nodes: IntArray) -> tuple[tuple[int, int], ...]:
    """Returns the ranges of consecutive numbers as (start, stop) pairs."""
    pieces = np.split(nodes, np.flatnonzero(np.diff(nodes) != 1) + 1)
    return tuple((int(piece[0]), int(piece[-1]) + 1) for piece in pieces if len(piece))
