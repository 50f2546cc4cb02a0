"""Prefix sharing: the sequences of a batch as a tree, in which tokens with the same past stand once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from sojourn.types import Batch, IntArray

SLACK = (1.02, 1.1, 1.25)  # by how much shares that pass side by side may exceed equal ones
WORTH = 1.25  # how much longer than the nodes shared out evenly the longest of each round may be together


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


def rounds(batch: Batch, budget: int, teams: int = 1) -> Iterator[list[IntArray]]:
    """The batch's sequences in shares, by their numbers, and in lists of those that may pass side by side.

    A list has at most `budget` nodes, or is of one sequence. Where `teams` could not all be kept busy, or would compute
    so much twice that it costs more than they gain, each share stands alone.
    """
    placed = _place(batch)
    shares = _even(placed, budget, teams) if teams > 1 and placed else _rounds(placed, budget, 1)
    for some in shares:
        yield [np.array([one.sequence for one in part]) for part in some]


def _place(batch: Batch) -> list[_Placed]:
    placed: list[_Placed] = []
    for s in order(batch):
        shared = _shared(batch, placed[-1].sequence, s) if placed else 0
        placed.append(_Placed(s, int(batch.starts[s + 1] - batch.starts[s]), shared))
    return placed


def _parts(placed: Sequence[_Placed], budget: float) -> Iterator[list[_Placed]]:
    """Shares of one sequence, or of at most `budget` nodes.

    What two shares have in common is computed in both, so a share that is full ends, in its second half, where the
    least is shared: between groups or episodes rather than between two turns of one.
    """
    held: list[_Placed] = []
    nodes = 0
    for one in placed:
        nodes += one.length - (one.shared if held else 0)
        held.append(one)
        while len(held) > 1 and nodes > budget:
            cut = _cut(held, budget)
            yield held[:cut]
            held = held[cut:]
            nodes = _sizes(held)[-1]
    if held:
        yield held


def _even(placed: Sequence[_Placed], budget: int, teams: int) -> list[list[list[_Placed]]]:
    """Rounds of about equal shares, one for each team, where that is worth it; else of one share each."""
    total = _sizes(placed)[-1]
    goal = total / (teams * -(-total // budget))
    found = [_rounds(placed, min(goal * slack, budget / teams), teams) for slack in SLACK]
    best = min(found, key=_longest)
    fits = all(sum(_sizes(part)[-1] for part in some) <= budget for some in best)
    if fits and _longest(best) * teams <= WORTH * total:
        return best
    return _rounds(placed, budget, 1)


def _rounds(placed: Sequence[_Placed], budget: float, teams: int) -> list[list[list[_Placed]]]:
    """The longest shares first where teams divide them, so that little is left to wait for in the end."""
    shares = list(_parts(placed, budget))
    if teams > 1:
        shares.sort(key=lambda part: -_sizes(part)[-1])
    return [shares[n : n + teams] for n in range(0, len(shares), teams)]


def _longest(rounds: Sequence[Sequence[Sequence[_Placed]]]) -> int:
    """The nodes of the longest share of each round, added up."""
    return sum(max(_sizes(part)[-1] for part in some) for some in rounds)


class _Placed(NamedTuple):
    sequence: int
    length: int
    shared: int  # tokens that it begins with as the sequence before it does


def _sizes(held: Sequence[_Placed]) -> list[int]:
    """The nodes of the first one, two ... as a share."""
    fresh = [held[0].length, *(placed.length - placed.shared for placed in held[1:])]
    return list(accumulate(fresh))


def _cut(held: Sequence[_Placed], budget: float) -> int:
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
