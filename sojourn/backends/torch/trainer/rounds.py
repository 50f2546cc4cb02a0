"""Divides a batch into micro-batches for memory, deals them to the ranks that train together, and groups those that
several workers of a rank compute side by side.

A rank is a process, a worker a group of threads in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from sojourn.batch.share import SortedSequence, sorted_sequences
from sojourn.types import Batch, IntArray

SLACK = (1.02, 1.1, 1.25)  # how much larger than an equal share a micro-batch of a round may be; each is tried
MAX_IMBALANCE = 1.25  # how many times its equal share of nodes the slowest worker may compute
REPEATED = 0.05  # what a node costs beside the time that the slowest rank needs for it

Round = list[list[SortedSequence]]  # micro-batches that are computed side by side


def rounds(batch: Batch, budget: int, workers: int = 1) -> Iterator[list[IntArray]]:
    """Yields rounds of micro-batches, each as the numbers of its sequences.

    A round has at most `budget` nodes, or one sequence. Where `workers` could not all be kept busy, or would compute so
    much of the shared prefixes repeatedly that it costs more than parallelism gains, each micro-batch is a round of its
    own.
    """
    yield from rounds_of_ranks(batch, budget, workers)[0]


def rounds_of_ranks(batch: Batch, budget: int, workers: int = 1, ranks: int = 1) -> list[list[list[IntArray]]]:
    """Returns the rounds of each of `ranks` processes that compute a batch together; some may have none."""
    sequences = sorted_sequences(batch)
    parts_of_ranks = [[sequences]] if ranks == 1 else deal(sequences, budget, ranks)
    return [
        [
            [np.array([s.sequence for s in micro_batch]) for micro_batch in one]
            for part in parts
            for one in _divided(part, budget, workers)
        ]
        for parts in parts_of_ranks
    ]


def deal(sequences: Sequence[SortedSequence], budget: float, ranks: int) -> list[list[list[SortedSequence]]]:
    """Returns the micro-batches of each rank, of at most `budget` nodes or of one sequence.

    Of some ways to divide the sequences, it is the one in which the rank with the most nodes, which the others wait
    for, has the fewest; nodes of others count a little, so that long prefixes are not computed twice for nothing.
    """
    if not sequences:
        return [[] for _ in range(ranks)]
    total = node_counts(sequences)[-1]
    share = total / (ranks * -(-total // (ranks * budget)))
    sizes = (*(min(share * slack, budget) for slack in SLACK), budget)
    dealt = [_dealt(list(micro_batches(sequences, size)), ranks) for size in sizes]
    loads = [[_nodes(parts) for parts in parts_of_ranks] for parts_of_ranks in dealt]
    return min(zip(loads, dealt, strict=True), key=lambda one: max(one[0]) + REPEATED * sum(one[0]))[1]


def _dealt(parts: Sequence[list[SortedSequence]], ranks: int) -> list[list[list[SortedSequence]]]:
    """Gives each micro-batch, the largest first, to the rank that has the fewest nodes so far."""
    dealt: list[list[list[SortedSequence]]] = [[] for _ in range(ranks)]
    for part in sorted(parts, key=lambda part: -_nodes([part])):
        min(dealt, key=_nodes).append(part)
    return dealt


def _nodes(parts: Sequence[Sequence[SortedSequence]]) -> int:
    return sum(node_counts(part)[-1] for part in parts)


def _divided(sequences: Sequence[SortedSequence], budget: int, workers: int) -> list[Round]:
    return _balanced(sequences, budget, workers) if workers > 1 and sequences else _rounds(sequences, budget, 1)


def _balanced(sequences: Sequence[SortedSequence], budget: int, workers: int) -> list[Round]:
    """Returns rounds with a micro-batch of about equal size for each worker, or rounds of one micro-batch."""
    total = node_counts(sequences)[-1]
    share = total / (workers * -(-total // budget))
    tried = [_rounds(sequences, min(share * slack, budget / workers), workers) for slack in SLACK]
    best = min(tried, key=_critical_nodes)
    fits = all(sum(node_counts(micro_batch)[-1] for micro_batch in one) <= budget for one in best)
    if fits and _critical_nodes(best) * workers <= MAX_IMBALANCE * total:
        return best
    return _rounds(sequences, budget, 1)


def _rounds(sequences: Sequence[SortedSequence], budget: float, workers: int) -> list[Round]:
    """Returns rounds of up to `workers` micro-batches; the largest come first, so that no worker is
    idle for long at the end."""
    divided = list(micro_batches(sequences, budget))
    if workers > 1:
        divided.sort(key=lambda micro_batch: -node_counts(micro_batch)[-1])
    return [divided[n : n + workers] for n in range(0, len(divided), workers)]


def _critical_nodes(rounds: Sequence[Round]) -> int:
    """Returns the nodes of the largest micro-batch of each round, added up: what the slowest worker
    computes."""
    return sum(max(node_counts(micro_batch)[-1] for micro_batch in one) for one in rounds)


def micro_batches(sequences: Sequence[SortedSequence], budget: float) -> Iterator[list[SortedSequence]]:
    """Divides the sequences into micro-batches of at most `budget` nodes, or of one sequence.

    Tokens that two micro-batches share are computed in both. So a full micro-batch is cut where, within its second
    half, neighbours share the shortest prefix: between groups or episodes rather than between turns of one episode.
    """
    pending: list[SortedSequence] = []
    nodes = 0
    for sequence in sequences:
        nodes += sequence.length - (sequence.shared if pending else 0)
        pending.append(sequence)
        while len(pending) > 1 and nodes > budget:
            cut = _cut(pending, budget)
            yield pending[:cut]
            pending = pending[cut:]
            nodes = node_counts(pending)[-1]
    if pending:
        yield pending


def node_counts(sequences: Sequence[SortedSequence]) -> list[int]:
    """Returns, for each k from 1 on, the number of nodes of a micro-batch of the first k sequences."""
    return list(accumulate([sequences[0].length, *(s.length - s.shared for s in sequences[1:])]))


def _cut(pending: Sequence[SortedSequence], budget: float) -> int:
    """Returns how many of the sequences, which together exceed `budget`, to put into the next micro-batch."""
    counts = [count for count, nodes in enumerate(node_counts(pending)[:-1], 1) if 2 * nodes > budget]
    return min(reversed(counts or [len(pending) - 1]), key=lambda count: pending[count].shared)
