"""How large a tree may become, and what plays have spent of that."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, NamedTuple

from sojourn.branching.rule import BoundsTrees, Branching, BranchPoint, Fork
from sojourn.config.fields import Range
from sojourn.types import Group


@dataclass(frozen=True, kw_only=True)
class TreeBudget:
    """Base of branching rules with budgets. At most `leaves` plays come of one from the start of the task, itself
    included. With `tree_tokens` above 0, no branch begins once the plays of a tree have sampled as many tokens, and
    with `tree_turns` above 0, once they have taken as many turns; a play that has begun goes on to its end."""

    leaves: Annotated[int, Range(2)] = 8
    tree_tokens: Annotated[int, Range(0)] = 0
    tree_turns: Annotated[int, Range(0)] = 0


class Spent(NamedTuple):
    """Sampled tokens and turns; in budgets they are infinite where there is no bound."""

    tokens: float
    turns: float

    def less(self, other: Spent) -> Spent:
        return Spent(self.tokens - other.tokens, self.turns - other.turns)

    def plus(self, other: Spent) -> Spent:
        return Spent(self.tokens + other.tokens, self.turns + other.turns)

    def divided(self, among: int) -> Spent:
        return Spent(self.tokens / among, self.turns / among)

    @property
    def some(self) -> bool:
        return min(self) > 0


class Room(NamedTuple):
    """Bounds what may come of a play: how many further plays, and what all of them may spend, this one included."""

    plays: int
    budget: Spent

    @classmethod
    def of(cls, rule: Branching) -> Room:
        """Returns that of a play from the start of the task."""
        bounds = (rule.tree_tokens, rule.tree_turns) if isinstance(rule, BoundsTrees) else (0, 0)
        return cls(rule.leaves - 1, Spent(*(bound or math.inf for bound in bounds)))


def spent(point: BranchPoint, since: int | None = None) -> Spent:
    """Returns what a play has spent since one of its turns; where none is given, since it left another play."""
    first = point.began if since is None else since
    own = islice(point.turns(), first, None)
    return Spent(sum(len(turn.sample.tokens) for turn in own), point.turn - first)


def affordable(forks: Iterable[tuple[BranchPoint, Fork]], budget: Spent) -> int:
    """Returns how many of these branches begin while some budget is left, if each of them costs what the play that
    forks has spent since then."""
    count = 0
    for point, fork in forks:
        if not budget.some:
            break
        count, budget = count + 1, budget.less(spent(point, fork.turn))
    return count


def mean_spent(group: Group) -> Spent:
    """Returns what the trees of a group have spent in the mean; a turn that plays share counts once."""
    turns = {id(turn.sample): turn for e in group.episodes for t in e.trajectories for turn in t.turns}
    roots = sum(episode.branch is None for episode in group.episodes)
    return Spent(sum(len(turn.sample.tokens) for turn in turns.values()), len(turns)).divided(max(roots, 1))
