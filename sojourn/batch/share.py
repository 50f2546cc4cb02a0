"""Prefix sharing: the sequences of a batch as a tree, in which tokens with the same past stand once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from sojourn.types import Batch, IntArray


class Run(NamedTuple):
    """Nodes `start` to `stop`, one after another, and the runs of nodes that come before them, from the root on."""

    start: int
    stop: int
    before: tuple[tuple[int, int], ...]


class Tree(NamedTuple):
    """M nodes for N tokens, depth first. A node depends on nothing but its path from the root, so it serves all."""

    tokens: IntArray  # (M,)
    positions: IntArray  # (M,) the depth of each node
    node: IntArray  # (N,) where each token of the batch stands
    runs: tuple[Run, ...]

    @property
    def ends(self) -> IntArray:
        """Where what stands below each node ends: (M,). Nodes stand in depth-first order, so it follows the node."""
        ends = np.arange(1, len(self.tokens) + 1)
        for run in self.runs:
            for start, stop in (*run.before, (run.start, run.stop)):
                ends[start:stop] = run.stop
        return ends


def order(batch: Batch) -> list[int]:
    """The sequences sorted by their tokens, so that neighbours share the longest prefixes."""

    def key(s: int) -> tuple[tuple[str, ...], bytes]:
        tokens = batch.tokens[batch.starts[s] : batch.starts[s + 1]]
        return (batch.images[s] if batch.images else ()), tokens.astype(">u8").tobytes()

    return sorted(range(len(batch.starts) - 1), key=key)


def _shared(batch: Batch, one: int, other: int) -> int:
    """The length of the common prefix of two sequences. Different images share nothing: equal placeholders hide
    unequal pixels."""
    if batch.images and batch.images[one] != batch.images[other]:
        return 0
    first, second = (batch.tokens[batch.starts[s] : batch.starts[s + 1]] for s in (one, other))
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


def parts(batch: Batch, budget: int) -> Iterator[IntArray]:
    """The batch's sequences in shares, by their numbers: each of one sequence, or of at most `budget` nodes.

    What two shares have in common is computed in both, so a share that is full ends, in its second half, where the
    least is shared: between groups or episodes rather than between two turns of one.
    """
    held: list[_Placed] = []
    nodes, last = 0, None
    for s in order(batch):
        length = int(batch.starts[s + 1] - batch.starts[s])
        held.append(_Placed(s, length, _shared(batch, last, s) if last is not None else 0))
        nodes, last = nodes + length - (held[-1].shared if held[1:] else 0), s
        while len(held) > 1 and nodes > budget:
            cut = _cut(held, budget)
            yield np.array([placed.sequence for placed in held[:cut]])
            held = held[cut:]
            nodes = _sizes(held)[-1]
    if held:
        yield np.array([placed.sequence for placed in held])


class _Placed(NamedTuple):
    sequence: int
    length: int
    shared: int  # tokens that it begins with as the sequence before it does


def _sizes(held: Sequence[_Placed]) -> list[int]:
    """The nodes of the first one, two ... as a share."""
    fresh = [held[0].length, *(placed.length - placed.shared for placed in held[1:])]
    return list(accumulate(fresh))


def _cut(held: Sequence[_Placed], budget: int) -> int:
    """How many of the first make a share, where one more than fit are held."""
    able = [count for count, size in enumerate(_sizes(held)[:-1], 1) if 2 * size > budget] or [len(held) - 1]
    return min(reversed(able), key=lambda count: held[count].shared)


def merge(batch: Batch) -> Tree:
    """Merges the equal prefixes of one sequence or more."""
    node = np.zeros(len(batch), dtype=np.int64)
    runs: list[Run] = []
    columns: list[tuple[IntArray, IntArray]] = []
    count, last = 0, None
    for s in order(batch):
        start, stop = int(batch.starts[s]), int(batch.starts[s + 1])
        shared = _shared(batch, last, s) if last is not None else 0
        before = node[batch.starts[last] :][:shared] if last is not None else node[:0]
        fresh = np.arange(count, count + stop - start - shared)
        node[start:stop] = np.concatenate([before, fresh])
        if len(fresh):
            runs.append(Run(count, count + len(fresh), _spans(before)))
            columns.append((batch.tokens[start + shared : stop], np.arange(shared, stop - start)))
        count, last = count + len(fresh), s
    tokens, positions = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Tree(tokens, positions, node, tuple(runs))


def line(length: int) -> Tree:
    """One made-up sequence, as a tree."""
    place = np.arange(length)
    return Tree(np.zeros_like(place), place, place, (Run(0, length, ()),))


def _spans(nodes: IntArray) -> tuple[tuple[int, int], ...]:
    """Consecutive numbers, as (start, stop) pairs."""
    pieces = np.split(nodes, np.flatnonzero(np.diff(nodes) != 1) + 1)
    return tuple((int(piece[0]), int(piece[-1]) + 1) for piece in pieces if len(piece))
