"""A frozen lake: the agent crosses the ice to the goal without falling into a hole.

A task is a map. An action is one of four moves; an observation is the map, the surroundings, or both, in words. The
reward is 1 for reaching the goal, else 0; the episode ends there, in a hole, or after `turns` moves.

Maps and moves are gymnasium's FrozenLake (MIT; Towers et al. 2024, arXiv:2407.17032). It differs in the text, and in
that every task has a map of its own (see `toytext` for more).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Annotated, ClassVar, Literal

from sojourn.config.fields import Range
from sojourn.envs.about import About, require_module
from sojourn.envs.fields import Count, check_fields
from sojourn.errors import ActionError
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Task
from sojourn_worlds.toytext import TabularEnv, TransitionTable, require_time

ACTIONS = ("left", "down", "right", "up")  # in gymnasium's order
SIDES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
TILES = {"S": "ice", "F": "ice", "H": "hole", "G": "goal"}
MARKS = {"S": ".", "F": ".", "H": "O", "G": "G"}
WRITTEN = {"@": "S", ".": "F", "O": "H", "G": "G"}  # the marks of a map that is proposed


@dataclass(frozen=True, kw_only=True)
class FrozenLake:
    """Lakes of ice with holes, a map for each task: reach the goal within `turns` moves, fall into no hole.

    `size` is the side of the map, `frozen` the probability of a tile to be ice. Where it is `slippery`, one goes where
    one meant to go in one of three cases, to its left or right in the others; what happens is decided by the task's
    seed. `sees` is "map" (rows of marks), "around" (what is on the four sides, and where the goal is), or "both". A map
    belongs to one split by its own hash, one of five to the test split. Maps can be written as text, so that a model
    can propose them.
    """

    size: Annotated[int, Range(3, 12)] = 4
    frozen: Annotated[float, Range(0.5, 0.95)] = 0.8
    slippery: bool = False
    sees: Literal["both", "map", "around"] = "both"
    turns: Annotated[int, Range(1, 1_000)] = 30
    choices: bool = False
    train: Count = 100_000
    test: Count = 1_000

    about: ClassVar[About] = About(
        source="FrozenLake of gymnasium (Towers et al. 2024, arXiv:2407.17032), told in words; a map for each task",
        licence="MIT",
        extra="gymnasium",
        smallest={"size": 3, "frozen": 0.7, "turns": 10},
    )

    def __post_init__(self) -> None:
        check_fields("frozenlake", self)
        require_time("frozenlake", self.turns, 2 * (self.size - 1))

    def tasks(self, split: str) -> Sequence[Task]:
        data = {name: getattr(self, name) for name in ("size", "frozen", "slippery", "sees", "turns")}
        return make_tasks_from_data("frozenlake", self, split, data)

    def make(self, task: Task) -> TabularEnv:
        data, rows = task.data, map_of(task)
        table = _transition_table(rows, data["slippery"], data["sees"])
        return TabularEnv(table, 0, f"frozenlake {task.id}", data["turns"], self.choices)

    def task_format(self, like: Task) -> str:
        size = like.data["size"]
        return (
            f"Write a map of {size} rows of {size} marks: @ is where one starts, at the top left, ice is ., a hole is "
            "O, and G is the goal, at the bottom right. Write the rows, and nothing else."
        )

    def write_task(self, task: Task) -> str:
        rows = map_of(task)
        marks = [[MARKS[tile] for tile in line] for line in rows]
        marks[0][0] = "@"
        return "\n".join(" ".join(line) for line in marks)

    def read_task(self, like: Task, text: str, seed: int) -> Task | None:
        """Returns the task of a map that can be crossed in time, whatever slips; of the training split alone."""
        size = like.data["size"]
        rows = tuple(filter(None, ("".join(line.split()) for line in text.splitlines())))
        if [len(row) for row in rows] != [size] * size or not set("".join(rows)) <= {*WRITTEN}:
            raise ActionError(f"That is no map. {self.task_format(like)}")
        whole = "".join(rows)
        if (whole[0], whole[-1]) != ("@", "G") or whole.count("@") + whole.count("G") != 2:
            raise ActionError(f"A map has @ at the top left and G at the bottom right. {self.task_format(like)}")
        lake_map = ["".join(WRITTEN[mark] for mark in row) for row in rows]
        task = Task(like.env, {**like.data, "map": lake_map}, seed, "train")
        return task if _split(tuple(lake_map)) == "train" and self.make(task).winnable() else None


def map_of(task: Task) -> tuple[str, ...]:
    """Returns the map of a task: that in its data, or that of its seed."""
    if "map" in task.data:
        return tuple(task.data["map"])
    return _map(task.split, task.seed, task.data["size"], task.data["frozen"])


@lru_cache(256)
def _map(split: str, seed: int, size: int, frozen: float) -> tuple[str, ...]:
    """Returns the first of the seed's maps whose hash falls to the split."""
    lake = require_module("gymnasium.envs.toy_text.frozen_lake", "sojourn-worlds[gymnasium]", "frozenlake")
    for attempt in count():
        drawn = hashlib.sha256(f"frozenlake {seed} {attempt}".encode()).digest()
        lake_map = tuple(lake.generate_random_map(size, frozen, int.from_bytes(drawn[:4])))
        if _split(lake_map) == split:
            return lake_map
    raise AssertionError("unreachable: count() does not end")


def _split(lake_map: tuple[str, ...]) -> str:
    """Returns the split that a map belongs to."""
    return "test" if hashlib.sha256("".join(lake_map).encode()).digest()[0] % 5 == 4 else "train"


@lru_cache(256)
def _transition_table(rows: tuple[str, ...], slippery: bool, sees: str) -> TransitionTable:
    lake = require_module("gymnasium.envs.toy_text.frozen_lake", "sojourn-worlds[gymnasium]", "frozenlake")
    goal = "Cross the frozen lake to the goal. Do not fall into a hole."
    if sees != "around":
        goal += " On the map you are @, ice is ., a hole is O, the goal is G."
    if slippery:
        goal += " The ice is slippery: you may slide to the left or right of where you go."
    table = lake.FrozenLakeEnv(desc=list(rows), is_slippery=slippery).P
    won = lambda reward: reward > 0  # noqa: E731
    return TransitionTable.of(
        "frozenlake", ACTIONS, table, won, goal=goal, describe=lambda state: _describe(rows, state, sees)
    )


def _describe(rows: tuple[str, ...], state: int, sees: str) -> str:
    size = len(rows)
    row, column = divmod(state, size)
    lines = []
    if sees != "around":
        marks = [[MARKS[tile] for tile in line] for line in rows]
        marks[row][column] = "@"
        lines += [" ".join(line) for line in marks]
    if sees != "map":
        around = [f"{side} {_tile(rows, row + down, column + right)}" for side, (down, right) in SIDES.items()]
        ways = [f"{far} {way}" for far, way in ((size - 1 - row, "down"), (size - 1 - column, "right")) if far]
        lines += [f"Around you: {', '.join(around)}.", f"The goal is {' and '.join(ways)}."]
    return "\n".join(lines)


def _tile(rows: tuple[str, ...], row: int, column: int) -> str:
    inside = 0 <= row < len(rows) and 0 <= column < len(rows)
    return TILES[rows[row][column]] if inside else "edge"
