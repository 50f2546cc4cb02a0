"""Finds the states that several plays of a group met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sojourn.branching.rule import BranchPoint, Fork


@dataclass(frozen=True)
class MetState:
    """A state in which the same seat acted in several plays, and the first turn of each there, by the play's number."""

    visits: dict[int, int]

    def fork(self, plays: Sequence[BranchPoint], count: int, reason: str) -> list[Fork]:
        """Returns a fork of the play that met the state first and came there by itself, of those in whose tree there is
        room; none where there is no such play."""
        able = [(turn, n) for n, turn in self.visits.items() if plays[n].room and turn >= plays[n].began]
        return [Fork(turn, count, reason, play) for turn, play in sorted(able)[:1]]


def met_states(plays: Sequence[BranchPoint]) -> list[MetState]:
    """Returns the states that at least two plays met, where the world has a `state_key`, but not those that they start
    in. Of several states that the same plays met, the last is returned: there they parted."""
    visits: dict[tuple[str, str], dict[int, int]] = {}
    starts = set[tuple[str, str]]()
    for number, play in enumerate(plays):
        for turn, (actor, taken) in enumerate(zip(play.actors, play.turns(), strict=False)):
            if taken.state is not None:
                visits.setdefault((actor, taken.state), {}).setdefault(number, turn)
                starts |= set() if turn else {(actor, taken.state)}
    last: dict[frozenset[int], MetState] = {}
    shared = [MetState(turns) for state, turns in visits.items() if state not in starts and len(turns) > 1]
    for state in sorted(shared, key=lambda state: min(state.visits.values())):
        last[frozenset(state.visits)] = state
    return list(last.values())
