"""Forks finished plays before the states that they came back to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.branching.budget import TreeBudget
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.config.fields import Range


@dataclass(frozen=True, kw_only=True)
class RevisitedStates(TreeBudget):
    """Forks a play at its end in the `count` states that it was in most often, at least twice: before the first of its
    own turns there, so that its branches need not go around again.

    States are told apart by the world's `state_key`, and by the seat that acts. `width` - 1 branches begin in each,
    which do the same, up to `depth` forks on a path. The first turn of the task is not chosen, as that would be another
    root: a play that came back to its start forks where it was there again. With `mistake`, plays fork before the
    action that led back, and only if they failed.
    """

    width: Annotated[int, Range(2)] = 2
    count: Annotated[int, Range(1)] = 1
    depth: Annotated[int, Range(1)] = 1

    env_needs = frozenset({"state_key"})

    def __call__(self, point: BranchPoint) -> Sequence[Fork]:
        if not point.over or point.forks >= self.depth:
            return ()
        visits: dict[tuple[str, str], list[int]] = {}
        for number, (actor, turn) in enumerate(zip(point.actors, point.turns(), strict=False)):
            if turn.state is not None:
                visits.setdefault((actor, turn.state), []).append(number)
        again = sorted((turns for turns in visits.values() if len(turns) > 1), key=lambda turns: -len(turns))
        own = [(len(turns), [turn for turn in turns if turn >= max(point.began, 1)]) for turns in again]
        forks = [Fork(turns[0], self.width - 1, f"in one state {times} times") for times, turns in own if turns]
        return forks[: self.count]
