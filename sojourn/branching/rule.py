"""What a branching rule knows of a play, and what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sojourn.types import Trajectory, Turn


@dataclass(frozen=True)
class BranchPoint:
    """A play before one of its turns, or at its end (`over`).

    `trajectories` are those of its seats so far, and `actors` the seat of each turn so far, refused ones included.
    Before turn `began` it was another play, which the rule was asked about. `forks` counts the forks on the way here,
    and `room` the further plays that may begin. Random choices are drawn from `rng`, which is the same whenever the
    play comes here again.
    """

    trajectories: Mapping[str, Trajectory]
    actors: tuple[str, ...]
    over: bool
    began: int
    forks: int
    room: int
    rng: np.random.Generator

    @property
    def turn(self) -> int:
        """Returns the number of turns so far: the next one has this number."""
        return len(self.actors)

    def turns(self) -> Iterator[Turn]:
        """Yields the turns so far, of all seats in order. A seat whose last one found no room has none for it."""
        each = {name: iter(trajectory.turns) for name, trajectory in self.trajectories.items()}
        for actor in self.actors:
            if (turn := next(each[actor], None)) is not None:
                yield turn


@dataclass(frozen=True)
class Fork:
    """Says that `count` further plays go on from before turn `turn`, and why, in a few words for people."""

    turn: int
    count: int
    reason: str


class Branching(Protocol):
    """Says where a play forks: here, or before one of its own earlier turns.

    It is asked before each of the play's own turns but the first of a branch, and at the end. `leaves` is the largest
    number of plays that come of one play from the start of the task, this one included. The rule sees one play alone,
    never its siblings, so that where it forks does not depend on which of them is faster.
    """

    @property
    def leaves(self) -> int: ...

    def __call__(self, point: BranchPoint) -> Sequence[Fork]: ...
