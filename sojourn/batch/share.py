"""Shares prefixes: the sequences of a batch become a tree, in which tokens with the same past are one node."""

from __future__ import annotations

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


class SortedSequence(NamedTuple):
    """A sequence of the sorted batch; `shared` is the length of the prefix that the sequence before it has, too."""

    sequence: int
    length: int
    shared: int


def sorted_sequences(batch: Batch) -> list[SortedSequence]:
    """Returns the sequences of a batch, sorted as `order` says."""
    sequences: list[SortedSequence] = []
    for s in order(batch):
        shared = _shared(batch, sequences[-1].sequence, s) if sequences else 0
        sequences.append(SortedSequence(s, int(batch.offsets[s + 1] - batch.offsets[s]), shared))
    return sequences


def merge(batch: Batch) -> Tree:
    """Returns the tree of a batch, in which equal prefixes of its sequences are merged."""
    node = np.zeros(len(batch), dtype=np.int64)
    segments: list[Segment] = []
    columns: list[tuple[IntArray, IntArray]] = []
    count, last = 0, None
    for s in order(batch):
        start, stop = int(batch.offsets[s]), int(batch.offsets[s + 1])
        shared = _shared(batch, last, s) if last is not None else 0
        before = node[batch.offsets[last] :][:shared] if last is not None else node[:0]
        new = np.arange(count, count + stop - start - shared)
        node[start:stop] = np.concatenate([before, new])
        if len(new):
            segments.append(Segment(count, count + len(new), _spans(before)))
            columns.append((batch.tokens[start + shared : stop], np.arange(shared, stop - start)))
        count, last = count + len(new), s
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
