"""The world's players of repeated matrix games, and how many points can be won from each of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

Payoffs = tuple[tuple[int, ...], ...]
"""A player's payoff, indexed by its own action and then by the other player's."""

OPPONENTS = (
    "tit_for_tat", "always_cooperate", "always_defect", "grim", "pavlov", "fictitious_play", "random",
)  # fmt: skip


@dataclass(frozen=True)
class Opponent:
    """A player that is a finite automaton: its action follows from its state, and its state from the actions of both
    players.

    "tit_for_tat" begins with the first action and then repeats the other's last one. "grim" plays the first action
    until the other has played anything else, and the second ever after. "pavlov" begins with the first action and moves
    on to the next one whenever it was paid less than the mean of its payoffs. "fictitious_play" answers best to the
    frequencies of the other's actions, with the first action among equals. "random" draws actions that follow from
    `seed` alone.
    """

    name: str
    payoffs: Payoffs  # its own
    seed: int

    def begin(self) -> Any:
        if self.name == "fictitious_play":
            return (0,) * len(self.payoffs[0])
        return 0

    def act(self, state: Any, number: int) -> int:
        """Returns its action in the round of that number."""
        match self.name:
            case "always_cooperate":
                return 0
            case "always_defect":
                return 1
            case "random":
                return random.Random(f"matrix {self.seed} {number}").randrange(len(self.payoffs))
            case "fictitious_play":
                worth = [sum(paid * n for paid, n in zip(row, state, strict=True)) for row in self.payoffs]
                return worth.index(max(worth))
        return state

    def after(self, state: Any, own: int, other: int) -> Any:
        """Returns its state after a round."""
        match self.name:
            case "tit_for_tat":
                return other
            case "grim":
                return int(state or other != 0)
            case "pavlov":
                everything = [paid for row in self.payoffs for paid in row]
                good = self.payoffs[own][other] * len(everything) >= sum(everything)
                return own if good else (own + 1) % len(self.payoffs)
            case "fictitious_play":
                return tuple(count + (action == other) for action, count in enumerate(state))
        return state


class Outlook(NamedTuple):
    """The largest and the smallest number of points that can still be won, and the action that wins the most."""

    best_points: int
    worst_points: int
    best_action: int


@lru_cache(32)  # a group plays one task many times
def outlook(opponent: Opponent, payoffs: Payoffs, rounds: int) -> list[dict[Any, Outlook]]:
    """Returns, for every round and reachable state of the opponent, what a player with these payoffs can still win.

    Computed by dynamic programming, from the last round back.
    """
    reached: list[set[Any]] = [{opponent.begin()}]
    for number in range(rounds - 1):
        reached.append(
            {
                opponent.after(state, opponent.act(state, number), own)
                for state in reached[number]
                for own in range(len(payoffs))
            }
        )
    outlooks: list[dict[Any, Outlook]] = [{} for _ in range(rounds)]
    for number in reversed(range(rounds)):
        for state in reached[number]:
            theirs = opponent.act(state, number)
            best_points, worst_points = [], []
            for own, row in enumerate(payoffs):
                then = Outlook(0, 0, 0)
                if number + 1 < rounds:
                    then = outlooks[number + 1][opponent.after(state, theirs, own)]
                best_points.append(row[theirs] + then.best_points)
                worst_points.append(row[theirs] + then.worst_points)
            outlooks[number][state] = Outlook(max(best_points), min(worst_points), best_points.index(max(best_points)))
    return outlooks
