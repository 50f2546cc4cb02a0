"""What a branching rule knows of plays, and what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from sojourn.ability import Ability
from sojourn.types import Message, Trajectory, Turn


@dataclass(frozen=True)
class BranchPoint:
    """A play before one of its turns, or at its end (`over`).

    `trajectories` are those of its seats so far, and `actors` the seat of each turn so far, refused ones included.
    Before turn `began` it was another play, which the rule was asked about. `forks` counts the forks on the way here,
    and `room` the further plays that may begin. Random choices are drawn from `rng`, which is the same whenever the
    play comes here again. `experts` are what the world's expert would have done in each turn so far, None where it has
    none; it is empty unless the rule's `env_needs` name "expert". `values` are the returns that the critic expected
    before each turn, for the seat that acted in it; it is empty before the end, and unless the rule `asks_critic`.
    """

    trajectories: Mapping[str, Trajectory]
    actors: tuple[str, ...]
    over: bool
    began: int
    forks: int
    room: int
    rng: np.random.Generator
    experts: tuple[Message | None, ...] = ()
    values: tuple[float, ...] = ()

    @property
    def turn(self) -> int:
        """Returns the number of turns so far: the next one has this number."""
        return len(self.actors)

    @property
    def success(self) -> bool:
        """Returns whether any seat has succeeded."""
        return any(trajectory.success for trajectory in self.trajectories.values())

    def turns(self) -> Iterator[Turn]:
        """Yields the turns so far, of all seats in order. A seat whose last one found no room has none for it."""
        each = {name: iter(trajectory.turns) for name, trajectory in self.trajectories.items()}
        for actor in self.actors:
            if (turn := next(each[actor], None)) is not None:
                yield turn


@dataclass(frozen=True)
class Fork:
    """Says that `count` further plays go on from before turn `turn`, and why, in a few words for people. Of several
    plays that a rule was shown, `play` is the number of the one that forks."""

    turn: int
    count: int
    reason: str
    play: int = 0


class Branching(Protocol):
    """Says where a play forks: here, or before one of its own earlier turns.

    It is asked before each of the play's own turns but the first of a branch, and at the end. `leaves` is the largest
    number of plays that come of one play from the start of the task, this one included. The rule sees one play alone,
    never its siblings, so that where it forks does not depend on which of them is faster.
    """

    @property
    def leaves(self) -> int: ...

    def __call__(self, point: BranchPoint) -> Sequence[Fork]: ...


@runtime_checkable
class GroupBranching(Ability, Protocol):
    """A branching rule that looks at all plays of the group, too, between rounds.

    A round is over when all its plays are. `after_round` is then shown all plays of the group so far, at their ends,
    without those that failed, and says which of them fork, the most important forks first: where there is not room for
    all, these begin. The branches are the next round, which is number 1 after the plays from the start. The last round
    is the one after which no branch begins.
    """

    def after_round(self, number: int, plays: Sequence[BranchPoint]) -> Sequence[Fork]: ...


@runtime_checkable
class BoundsTrees(Ability, Protocol):
    """A branching rule that bounds what the plays of a tree spend: no branch begins once they have sampled
    `tree_tokens` tokens, or taken `tree_turns` turns; 0: no bound."""

    @property
    def tree_tokens(self) -> int: ...
    @property
    def tree_turns(self) -> int: ...
