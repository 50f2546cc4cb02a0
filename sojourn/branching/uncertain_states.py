"""Forks plays in the states whose values are least known from the returns of the group's plays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from sojourn.branching.budget import TreeBudget
from sojourn.branching.met_states import MetState, met_states
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.config.fields import Range


@dataclass(frozen=True, kw_only=True)
class UncertainStates(TreeBudget):
    """Forks plays in the `count` states whose values the plays of the group leave least certain, when all plays are
    over, and again after each of `rounds` rounds, whose plays count then, too.

    How uncertain a state is follows from the returns of the plays that met it, each from its first turn there on: by
    `measure`, their "variance", which is p (1 - p) where a fraction p of them is paid 1 at the end, or the "error" of
    their mean, the variance divided by their number, so that a state is left once it was tried often. Where all plays
    came to the same, there is no fork. With one round, the tree becomes wide at once; with several, step by step.

    The value is of the world's own rewards: rewards by a judge come later, and a critic is not asked. States are told
    apart by the world's `state_key`, and by the seat that acts; those in which plays start do not count, and of states
    that the same plays met only the last does. In each of them, `width` - 1 branches leave the play that was there
    first.

    InfoTree (Hu et al. 2026, arXiv:2605.05262, of which the abstract was read) chooses the states of a tree by their
    uncertainty, too, but by a bound which has the entropy of tokens as a part; RTMC (arXiv:2604.11037, abstract read)
    takes values from the plays of a group that share a state, for advantages.
    """

    width: Annotated[int, Range(2)] = 2
    count: Annotated[int, Range(1)] = 1
    rounds: Annotated[int, Range(1)] = 4
    measure: Literal["variance", "error"] = "variance"

    env_needs = frozenset({"state_key"})

    def __call__(self, point: BranchPoint) -> Sequence[Fork]:
        return ()

    def after_round(self, number: int, plays: Sequence[BranchPoint]) -> Sequence[Fork]:
        if number > self.rounds:
            return ()
        found: list[tuple[float, Fork]] = []
        for state in met_states(plays):
            variance = self._uncertainty(state, plays)
            reason = f"{self.measure} {variance:.2g} over {len(state.visits)} plays"
            found += [(variance, fork) for fork in state.fork(plays, self.width - 1, reason) if variance > 0]
        return [fork for _, fork in sorted(found, key=lambda pair: -pair[0])[: self.count]]

    def _uncertainty(self, state: MetState, plays: Sequence[BranchPoint]) -> float:
        returns = [_return_from(plays[number], turn) for number, turn in state.visits.items()]
        return float(np.var(returns)) / (len(returns) if self.measure == "error" else 1)


def _return_from(play: BranchPoint, turn: int) -> float:
    """Returns the rewards that the seat which acts in a turn was given from then on."""
    seat = play.actors[turn]
    before = play.actors[:turn].count(seat)
    return float(sum(taken.reward for taken in play.trajectories[seat].turns[before:]))
