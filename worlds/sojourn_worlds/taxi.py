"""A taxi in a small town with walls: the agent fetches the passenger and brings them to their destination.

A task is a starting state. An action is a move, "pick up" or "drop off"; an observation is where the passenger, the
destination and the free ways are, in words. The reward is 1 for the delivery, else 0; the episode ends there, or after
`turns` actions.

Town and moves are gymnasium's Taxi (MIT; Towers et al. 2024, arXiv:2407.17032), after Dietterich 2000
(arXiv:cs/9905014). It differs in that an action without effect (into a wall, picking up nobody) is refused instead of
penalised; and in the reward, while the original's costs are in the info.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from sojourn.config.fields import Range
from sojourn.envs.about import About, require_module
from sojourn.envs.fields import Count, check_fields
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Task
from sojourn_worlds.toytext import TabularEnv, TransitionTable, require_time

ACTIONS = ("south", "north", "east", "west", "pick up", "drop off")  # in gymnasium's order
STOPS = {"red": (0, 0), "green": (0, 4), "yellow": (4, 0), "blue": (4, 3)}  # in gymnasium's order
INSIDE = 4
NEAREST = 9  # actions to the goal from the nearest start for testing; from that for training it is 6


@dataclass(frozen=True, kw_only=True)
class Taxi:
    """A taxi on a grid of 5 by 5: pick the passenger up at one of four stops, drop them off at another.

    Where it is `rainy`, the taxi goes where it is steered in eight of ten cases, to its left or right in the others. Of
    the 300 starting states (taxi, passenger, destination) every fifth is for testing.
    """

    rainy: bool = False
    turns: Annotated[int, Range(1, 1_000)] = 60
    choices: bool = False
    train: Count = 100_000
    test: Count = 1_000

    about: ClassVar[About] = About(
        source="Taxi of gymnasium (Towers et al. 2024, arXiv:2407.17032; Dietterich 2000), told in words",
        licence="MIT",
        extra="gymnasium",
    )

    def __post_init__(self) -> None:
        check_fields("taxi", self)
        require_time("taxi", self.turns, NEAREST)

    def tasks(self, split: str) -> Sequence[Task]:
        data = {"rainy": self.rainy, "turns": self.turns}
        return make_tasks_from_data("taxi", self, split, data)

    def make(self, task: Task) -> TabularEnv:
        table = _transition_table(task.data["rainy"])
        start = random.Random(f"taxi start {task.seed}").choice(starts(task.split))
        return TabularEnv(table, start, f"taxi {task.id}", task.data["turns"], self.choices)


def starts(split: str) -> list[int]:
    """Returns the starting states of a split: the passenger waits, and not at their destination."""
    states = [state for state in range(500) if decode(state)[2] not in (INSIDE, decode(state)[3])]
    return [state for number, state in enumerate(states) if (number % 5 == 4) == (split == "test")]


def decode(state: int) -> tuple[int, int, int, int]:
    """Returns the row and column of the taxi, the passenger's stop (4: inside), and the destination."""
    rest, destination = divmod(state, 4)
    rest, passenger = divmod(rest, 5)
    row, column = divmod(rest, 5)
    return row, column, passenger, destination


@lru_cache(2)
def _transition_table(rainy: bool) -> TransitionTable:
    town: Any = require_module("gymnasium.envs.toy_text.taxi", "sojourn-worlds[gymnasium]", "taxi").TaxiEnv(
        is_rainy=rainy
    )
    goal = "Drive the taxi: pick up the passenger, then drop them off at their destination."
    if rainy:
        goal += " It rains: the taxi may slip to the left or right of where you steer it."
    table = TransitionTable.of(
        "taxi", ACTIONS, town.P, lambda reward: True, goal=goal, describe=lambda state: _describe(table, state)
    )
    return table


def _describe(table: TransitionTable, state: int) -> str:
    row, column, passenger, destination = decode(state)
    ways = [ACTIONS[action] for action in table.possible(state) if action < 4]
    stops = list(STOPS)
    if passenger == INSIDE:
        lines = [f"The passenger is in the taxi and wants to go to {stops[destination]}."]
        aims = {stops[destination]: STOPS[stops[destination]]}
    else:
        lines = [f"The passenger waits at {stops[passenger]} and wants to go to {stops[destination]}."]
        aims = {stops[passenger]: STOPS[stops[passenger]]}
    lines += [f"{name.capitalize()} is {_where(to[0] - row, to[1] - column)}." for name, to in aims.items()]
    return " ".join([*lines, f"Free ways: {', '.join(ways)}."])


def _where(down: int, right: int) -> str:
    south = [f"{abs(down)} {'south' if down > 0 else 'north'}"] if down else []
    east = [f"{abs(right)} {'east' if right > 0 else 'west'}"] if right else []
    return " and ".join(south + east) or "here"
