"""Forks finished plays before their least certain turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.branching.budget import TreeBudget
from sojourn.branching.certainty import sampled_entropy
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.config.fields import Range


@dataclass(frozen=True, kw_only=True)
class UncertainTurns(TreeBudget):
    """Forks each play at its end, before each of the `count` own turns at which the policy was least certain (the
    entropy-guided tree expansion of AT2PO: Zong et al. 2026, arXiv:2601.04767).

    A turn's entropy is minus the mean log-probability of its sampled tokens. The plays that one gave rise to do the
    same, up to `depth` forks on a path. The first turn of the task is not chosen, as that would be another root. The
    authors' code chooses in each of two rounds among the turns of the whole tree, first ones included, and prefers by
    0.05 nats a turn with one sibling less; here every play chooses among its own turns alone.
    """

    count: Annotated[int, Range(1)] = 2
    depth: Annotated[int, Range(1)] = 1

    def __call__(self, point: BranchPoint) -> Sequence[Fork]:
        if not point.over or point.forks >= self.depth:
            return ()
        entropies = [sampled_entropy(turn) for turn in point.turns()]
        own = range(max(point.began, 1), len(entropies))
        chosen = sorted(own, key=lambda number: -entropies[number])[: self.count]
        return [Fork(number, 1, f"entropy {entropies[number]:.2f} nats") for number in sorted(chosen)]
