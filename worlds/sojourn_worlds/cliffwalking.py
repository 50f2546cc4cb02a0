"""Cliff walking: the agent goes to the corner behind a cliff, and does not step off.

A task is a starting cell. An action is one of four moves; an observation is the surroundings and the way to the goal,
in words. The reward is 1 at the goal, else 0; the episode ends there, or after `turns` moves.

The grid and the moves are gymnasium's CliffWalking (MIT; Towers et al. 2024, arXiv:2407.17032), after example 6.6 of
Sutton & Barto 2018. It differs in that the start is any cell but the cliff, so that there are 37 tasks; and in the
reward, while the original's costs (1 per step, 100 per fall) are in the info.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

from sojourn.config.fields import Range
from sojourn.envs.about import About, require_module
from sojourn.envs.fields import Count, check_fields
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Task
from sojourn_worlds.toytext import TabularEnv, TransitionTable, require_time

ACTIONS = ("up", "right", "down", "left")  # in gymnasium's order
SIDES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
ROWS, COLUMNS = 4, 12
BEGINNING = 36  # where one is put after a fall
NEAREST = 2  # moves to the goal from the nearest start for testing; from that for training it is 1


@dataclass(frozen=True, kw_only=True)
class CliffWalking:
    """A grid of 4 by 12 with a cliff along its lower edge: reach the lower right corner within `turns` steps.

    An agent that steps off the cliff is put back to the lower left corner. Where it is `slippery`, one goes where one
    meant to go in one of three cases, to its left or right in the others. Every fifth of the 37 starting cells is for
    testing.
    """

    slippery: bool = False
    turns: Annotated[int, Range(1, 1_000)] = 40
    choices: bool = False
    train: Count = 100_000
    test: Count = 1_000

    about: ClassVar[About] = About(
        source="CliffWalking of gymnasium (Towers et al. 2024, arXiv:2407.17032; Sutton & Barto 2018), told in words",
        licence="MIT",
        extra="gymnasium",
    )

    def __post_init__(self) -> None:
        check_fields("cliffwalking", self)
        require_time("cliffwalking", self.turns, NEAREST)

    def tasks(self, split: str) -> Sequence[Task]:
        data = {"slippery": self.slippery, "turns": self.turns}
        return make_tasks_from_data("cliffwalking", self, split, data)

    def make(self, task: Task) -> TabularEnv:
        start = random.Random(f"cliffwalking start {task.seed}").choice(starts(task.split))
        table = _transition_table(task.data["slippery"])
        return TabularEnv(table, start, f"cliffwalking {task.id}", task.data["turns"], self.choices)


def starts(split: str) -> list[int]:
    """Returns the cells that the tasks of a split start in: every fifth is for testing."""
    return [cell for cell in range(BEGINNING + 1) if (cell % 5 == 4) == (split == "test")]


@lru_cache(2)
def _transition_table(slippery: bool) -> TransitionTable:
    cliff = require_module("gymnasium.envs.toy_text.cliffwalking", "sojourn-worlds[gymnasium]", "cliffwalking")
    goal = (
        "Walk to the goal in the lower right corner of a grid of 4 rows and 12 columns. Between the lower left corner "
        "and the goal is a cliff: who steps off it starts again in the lower left corner."
    )
    if slippery:
        goal += " It is slippery: you may slide to the left or right of where you go."
    table = cliff.CliffWalkingEnv(is_slippery=slippery).P
    fall = {-100.0: "You stepped off the cliff, and are in the lower left corner."}
    return TransitionTable.of(
        "cliffwalking", ACTIONS, table, lambda reward: True, goal=goal, describe=_describe, remarks=fall
    )


def _describe(state: int) -> str:
    row, column = divmod(state, COLUMNS)
    around = [f"{side} {_cell(row + down, column + right)}" for side, (down, right) in SIDES.items()]
    ways = [f"{far} {way}" for far, way in ((ROWS - 1 - row, "down"), (COLUMNS - 1 - column, "right")) if far]
    return f"Around you: {', '.join(around)}.\nThe goal is {' and '.join(ways)}."


def _cell(row: int, column: int) -> str:
    if not (0 <= row < ROWS and 0 <= column < COLUMNS):
        return "edge"
    if row < ROWS - 1 or column == 0:
        return "ground"
    return "goal" if column == COLUMNS - 1 else "cliff"
