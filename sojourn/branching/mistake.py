"""Forks before the first turn that went wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.branching.budget import TreeBudget
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.config.fields import Range
from sojourn.types import Turn


@dataclass(frozen=True, kw_only=True)
class Mistake(TreeBudget):
    """Forks a play that did not succeed, at its end, before its first own turn that went wrong: one that could not be
    read or done (`malformed`), that the world reported an `error` of, or that led back to a state in which the same
    seat had acted before. `width` - 1 branches begin there, each of which may fork again, up to `depth` forks on a
    path.

    A turn of info `malformed` or `error` above 0 went wrong. States are compared by the world's `state_key`, where it
    has one. A play without a mistake does not fork.
    """

    width: Annotated[int, Range(2)] = 2
    depth: Annotated[int, Range(1)] = 1

    def __call__(self, point: BranchPoint) -> Sequence[Fork]:
        if not point.over or point.forks >= self.depth or point.success:
            return ()
        found = self._first(point)
        return () if found is None else (Fork(found[0], self.width - 1, found[1]),)

    def _first(self, point: BranchPoint) -> tuple[int, str] | None:
        """Returns the number of the first own turn that went wrong, and how."""
        found = mistakes(zip(point.actors, point.turns(), strict=False))
        return next(((number, f"before {what}") for number, what in found if number >= point.began), None)


def mistakes(acted: Iterable[tuple[str, Turn]]) -> list[tuple[int, str]]:
    """Returns the numbers of turns that went wrong, in order, and how; the turns are given with the seats that acted in
    them."""
    seen: set[tuple[str, str]] = set()
    wrong: list[tuple[int, str]] = []
    for number, (actor, turn) in enumerate(acted):
        if turn.state is not None:
            if (actor, turn.state) in seen:  # the turn before led back there
                wrong.append((number - 1, "a way back"))
            seen.add((actor, turn.state))
        wrong += [(number, name) for name in ("malformed", "error") if turn.info.get(name, 0) > 0]
    return wrong
