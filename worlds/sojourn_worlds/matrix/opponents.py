"""Those who play against the agent in repeated games, and how much can be won from each of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

Payoffs = tuple[tuple[int, ...], ...]
"""What a player is paid, by its own action and the other's."""

OPPONENTS = (
    "tit_for_tat", "always_cooperate", "always_defect", "grim", "pavlov", "fictitious_play", "random",
)  # fmt: skip


@dataclass(frozen=True)
class Opponent:
    """A player that is an automaton: what it does follows from its state, which follows from what was done.

    "tit_for_tat" begins with the first action and then repeats the other's last; "grim" says the first until the other
    has said anything else, and the second ever after; "pavlov" begins with the first and goes on to the next action
    whenever it was paid less than the mean of its payoffs; "fictitious_play" answers best to how often the other has
    said what, with the first action where several are best; "random" tosses coins that follow from `seed` alone.
    """

    name: str
    payoffs: Payoffs  # its own
    seed: int

    def begin(self) -> Any:
        if self.name == "fictitious_play":
            return (0,) * len(self.payoffs[0])
        return 0

    def act(self, state: Any, number: int) -> int:
        """Its action in the round of that number."""
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
        """Its state after a round."""
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
    """The most and the least that can still be won, and the action that wins most."""

    most: int
    least: int
    best: int


@lru_cache(32)  # a group plays one task many times
def outlook(opponent: Opponent, payoffs: Payoffs, rounds: int) -> list[dict[Any, Outlook]]:
    """For every round and state of the opponent's that can be reached, what the rest of the match can bring to a player
    of these payoffs: dynamic programming, from the last round back."""
    reached: list[set[Any]] = [{opponent.begin()}]
    for number in range(rounds - 1):
        reached.append(
            {
                opponent.after(state, opponent.act(state, number), own)
                for state in reached[number]
                for own in range(len(payoffs))
            }
        )
    found: list[dict[Any, Outlook]] = [{} for _ in range(rounds)]
    for number in reversed(range(rounds)):
        for state in reached[number]:
            theirs = opponent.act(state, number)
            most, least = [], []
            for own, row in enumerate(payoffs):
                then = Outlook(0, 0, 0)
                if number + 1 < rounds:
                    then = found[number + 1][opponent.after(state, theirs, own)]
                most.append(row[theirs] + then.most)
                least.append(row[theirs] + then.least)
            found[number][state] = Outlook(max(most), min(least), most.index(max(most)))
    return found
