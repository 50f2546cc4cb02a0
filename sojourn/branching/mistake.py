"""Forks before the first turn that went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.branching.rule import BranchPoint, Fork
from sojourn.config.fields import Range


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """Forks a play that did not succeed, at its end, before its first own turn that went wrong: one that could not be
    read or done (`malformed`), that the world reported an `error` of, or that led back to a state in which the same
    seat had acted before. `width` - 1 branches begin there, each of which may fork again, up to `depth` forks on a
    path.

    A turn of info `malformed` or `error` above 0 went wrong. States are compared by the world's `state_key`, where it
    has one. A play without a mistake does not fork.
    """

    width: Annotated[int, Range(2)] = 2
    depth: Annotated[int, Range(1)] = 1
    leaves: Annotated[int, Range(2)] = 8

    def __call__(self, point: BranchPoint) -> Sequence[Fork]:
        if not point.over or point.forks >= self.depth or any(t.success for t in point.trajectories.values()):
            return ()
        found = self._first(point)
        return () if found is None else (Fork(found[0], self.width - 1, found[1]),)

    def _first(self, point: BranchPoint) -> tuple[int, str] | None:
        """Returns the number of the first own turn that went wrong, and how."""
        seen: set[tuple[str, str]] = set()
        wrong: list[tuple[int, str]] = []
        for number, (actor, turn) in enumerate(zip(point.actors, point.turns(), strict=False)):
            if turn.state is not None:
                if (actor, turn.state) in seen:  # the turn before led back there
                    wrong.append((number - 1, "before a way back"))
                seen.add((actor, turn.state))
            wrong += [(number, f"before {name}") for name in ("malformed", "error") if turn.info.get(name, 0) > 0]
        return next((one for one in wrong if one[0] >= point.began), None)
