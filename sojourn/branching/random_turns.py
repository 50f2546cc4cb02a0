"""Forks finished plays before turns that are drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.branching.budget import TreeBudget
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.config.fields import Range


@dataclass(frozen=True, kw_only=True)
class RandomTurns(TreeBudget):
    """Forks each play at its end, before `count` of its own turns, drawn uniformly with replacement (the expansion of
    Tree-GRPO: Ji et al. 2025, arXiv:2509.21240, section 3.2: M plays are initialised, N nodes of each are sampled and
    one path goes on from each, L times over).

    The plays that one gave rise to do the same, up to `depth` forks on a path. The first turn of the task is not drawn,
    as that would be another root. The authors' code draws the nodes of each round from the whole tree, its start
    included, and keeps as many leaves of a tree as it is told, drawn at random; here every play of a round draws among
    its own turns, and all leaves are kept.
    """

    count: Annotated[int, Range(1)] = 2
    depth: Annotated[int, Range(1)] = 1

    def __call__(self, point: BranchPoint) -> Sequence[Fork]:
        first = max(point.began, 1)
        if not point.over or point.forks >= self.depth or point.turn <= first:
            return ()
        drawn = sorted(point.rng.integers(first, point.turn, self.count).tolist())
        return [Fork(turn, drawn.count(turn), "drawn") for turn in sorted(set(drawn))]
