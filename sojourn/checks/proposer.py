"""Checks a proposer: what it makes of tasks that were played, and whether that depends on nothing else."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sojourn.abilities import Bounds
from sojourn.checks.promise import (
    BrokenError,
    DoubtfulError,
    NotOfferedError,
    Promise,
    judge_all,
    require_config,
    require_methods,
)
from sojourn.checks.report import Report
from sojourn.curricula.task_history import Outcome, TaskHistory
from sojourn.errors import ConfigError
from sojourn.protocols import Env
from sojourn.types import Task

BOUNDS = {"size": Bounds(1, 9), "share": Bounds(0, 1, 0.1)}  # the numbers that the made-up world lets be changed
POOL = 16  # tasks that were played
PROPOSALS = 64


@dataclass
class World:
    """The world of the made-up tasks, which keeps all that is asked of it."""

    refuses: bool = False
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    made: list[Task] = field(default_factory=list)

    def tasks(self, split: str) -> list[Task]:
        made = [_task({"size": 1 + n % 9, "share": n % 11 / 10, "place": "hall"}, n) for n in range(POOL)]
        return made if split == "train" else []

    def make(self, task: Task) -> Env:
        raise NotImplementedError("a proposer plays nothing")

    def bounds(self, like: Task) -> Mapping[str, Bounds]:
        return BOUNDS

    def make_task(self, like: Task, data: Mapping[str, Any], seed: int) -> Task | None:
        self.asked.append(copy.deepcopy(dict(data)))
        if self.refuses:
            return None
        self.made.append(_task(dict(data), seed))
        return self.made[-1]


def _task(data: dict[str, Any], seed: int) -> Task:
    return Task("made", data, seed, "train")


@dataclass(frozen=True)
class Case:
    proposer: Any

    def proposals(self, world: World, history: TaskHistory, seed: int = 0) -> Iterator[tuple[int, Task | None]]:
        """Yields parents and what is proposed of each, in the way in which a curriculum asks."""
        try:
            self.proposer.check(dict(BOUNDS))
        except ConfigError as error:
            raise NotOfferedError("it works with the numbers of another world") from error
        for number in range(PROPOSALS):
            parent = number % len(history.pool)
            yield parent, self.proposer.propose(history, parent, world, np.random.default_rng([seed, number]))


def played() -> TaskHistory:
    """Returns what is known of the tasks after each was played twice, with another success rate for each."""
    history = TaskHistory(World().tasks("train"), POOL)
    for history.clock in (1, 2):
        for index in range(POOL):
            rate = index / (POOL - 1)
            history.of.add(index, Outcome(4, rate, rate, 1.0, 2 * rate * (1 - rate), 100), history.clock)
    return history


def check_proposer(component: Any) -> Report:
    """Returns the verdicts on a proposer, which is asked for tasks of a made-up world."""
    return Report(type(component).__name__, judge_all(PROMISES, Case(component)))


def _declares(case: Case) -> str:
    return require_config(case.proposer)


def _whole(case: Case) -> str:
    require_methods(case.proposer, ("check", "propose"), "a proposer")
    return "check and propose"


def _accepts(case: Case) -> str:
    """Asks whether it works with the made-up numbers; one that is set up for another world's cannot be checked."""
    try:
        case.proposer.check(dict(BOUNDS))
    except ConfigError as error:
        raise DoubtfulError(f"it refuses the numbers {', '.join(BOUNDS)} of a made-up world: {error}") from error
    return f"the numbers {', '.join(BOUNDS)}"


def _makes(case: Case) -> str:
    world = World()
    proposed = [task for _, task in case.proposals(world, played())]
    for task in proposed:
        if task is not None and not any(task is made for made in world.made):
            raise BrokenError(
                f"it proposes {task!r:.80}, which the world did not make: return what `make_task` returns, as only "
                "the world knows whether a task can be solved"
            )
    made = sum(task is not None for task in proposed)
    if not made:
        raise DoubtfulError(f"none of {PROPOSALS} proposals is a task")
    return f"{made} tasks of {PROPOSALS} proposals"


def _within(case: Case) -> str:
    world = World()
    list(case.proposals(world, played()))
    for data in world.asked:
        for key, of in BOUNDS.items():
            value = data.get(key)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise BrokenError(f"it asks for {key} = {value!r:.40}: expected a number, as in the task it began with")
            if not of.low <= value <= of.high:
                raise BrokenError(f"it asks for {key} = {value:g}: the world's bounds are {of.low:g} to {of.high:g}")
        if not isinstance(data["size"], int):
            raise BrokenError(f"it asks for size = {data['size']!r}: a whole number must stay one")
        if data.get("place") != "hall":
            raise BrokenError(f"it asks for place = {data.get('place')!r:.40}, which the world lets nobody change")
    return "all numbers are within the world's bounds"


def _refused(case: Case) -> str:
    if found := [task for _, task in case.proposals(World(refuses=True), played()) if task is not None]:
        raise BrokenError(f"the world made none, but it proposes {found[0]!r:.80}")
    return "None where the world makes none"


def _deterministic(case: Case) -> str:
    world, history = World(), played()
    first, again = (list(case.proposals(world, history, seed=1)) for _ in range(2))
    resumed = [Case(copy.deepcopy(case.proposer)).proposals(World(), played(), seed=1)]
    for (parent, one), (_, two), (_, three) in zip(first, again, *resumed, strict=True):
        if not one == two == three:
            raise BrokenError(
                f"of task {parent}, {_shown(one)} and {_shown(two if two != one else three)} are proposed with the "
                "same random numbers: a resumed run would not be the same; draw from `rng`, and remember nothing"
            )
    return "the same history and random numbers, the same proposal"


def _leaves(case: Case) -> str:
    history = played()
    before = copy.deepcopy((list(history.pool), vars(history.of)))
    list(case.proposals(World(), history))
    pool, columns = before
    if list(history.pool) != pool:
        raise BrokenError("it changed a task that was played: copy its data first")
    if changed := [name for name, old in columns.items() if not _same(vars(history.of)[name], old)]:
        raise BrokenError(f"it changed what is known of the tasks: `{changed[0]}`")
    return "tasks and their history stay what they are"


def _same(one: np.ndarray, two: np.ndarray) -> bool:
    return one.shape == two.shape and bool(np.array_equal(one, two, equal_nan=True))


def _shown(task: Task | None) -> str:
    return "nothing" if task is None else f"{dict(task.data)} with seed {task.seed}"


MAKES = ("it has all methods", "its tasks are the world's")
PROMISES = (
    Promise("a config can name it", (), _declares),
    Promise(MAKES[0], (), _whole),
    Promise("it knows the numbers of a world", MAKES[:1], _accepts),
    Promise(MAKES[1], MAKES[:1], _makes),
    Promise("it keeps to the world's bounds", MAKES, _within),
    Promise("it takes no for an answer", MAKES, _refused),
    Promise("it is deterministic", MAKES, _deterministic),
    Promise("it changes nothing that was played", MAKES, _leaves),
)
