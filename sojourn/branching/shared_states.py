"""Forks plays in the states that most plays of the group met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.branching.budget import TreeBudget
from sojourn.branching.met_states import met_states
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.config.fields import Range


@dataclass(frozen=True, kw_only=True)
class SharedStates(TreeBudget):
    """Forks plays, when all plays of a group from the start are over, in the `count` states that most of them met: what
    was done there can be compared over many plays, as by `gigpo`.

    States are told apart by the world's `state_key`, and by the seat that acts; those in which plays start do not
    count. Of states that the same plays met, only the last does, from which they parted. In each of them, `width` - 1
    branches leave the play that was there first.
    """

    width: Annotated[int, Range(2)] = 2
    count: Annotated[int, Range(1)] = 4

    env_needs = frozenset({"state_key"})

    def __call__(self, point: BranchPoint) -> Sequence[Fork]:
        return ()

    def after_round(self, number: int, plays: Sequence[BranchPoint]) -> Sequence[Fork]:
        if number > 1:
            return ()
        most = sorted(met_states(plays), key=lambda state: -len(state.visits))[: self.count]
        return [f for s in most for f in s.fork(plays, self.width - 1, f"{len(s.visits)} plays were here")]
