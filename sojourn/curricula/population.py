"""A bounded population of tasks that changes while a run trains: some drawn from the split, some made."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sojourn.abilities import Bounds, MakesTasks
from sojourn.codec import from_plain, to_plain
from sojourn.curricula.proposer import Proposer
from sojourn.curricula.task_history import Array, TaskHistory
from sojourn.curricula.weighted import MAX_DRAWS, Draws, WeighsSplit, beliefs, normalised, predicted
from sojourn.errors import ConfigError
from sojourn.protocols import EnvFamily
from sojourn.types import Group, IntArray, Score, Task

MADE = "made"  # the tag of tasks that no split has
PROPOSALS = 2**61  # tells the random numbers of proposals from those of draws
TRIES = 8  # proposals, or draws from the split, for one new task
MAX_HELD_OUT = 4096  # tasks of the test split that proposals are compared with


class PopulationConfig(Protocol):
    """Tells a population how it is to change: see `Accel`."""

    @property
    def base(self) -> WeighsSplit: ...
    @property
    def proposer(self) -> Proposer: ...
    @property
    def capacity(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def new(self) -> float: ...
    @property
    def made(self) -> float: ...
    @property
    def accept(self) -> tuple[float, float]: ...
    def draw_weights(self, history: TaskHistory) -> Array: ...
    def worth(self, history: TaskHistory) -> Array: ...


@dataclass(frozen=True)
class Member:
    """A task of the population, and how many proposals lead to it from a task of the split."""

    task: Task
    edits: int = 0


@dataclass(frozen=True)
class Era:
    """The population from one observation to the next, and the weights by which slots that begin then are drawn."""

    draws: Draws
    members: tuple[Member, ...]


@dataclass
class Population:
    """Draws the slots that begin between two observations from the population of that time.

    A draw depends on the seed, the slot, and on what was observed before the slot began, never on timing: redraws of a
    slot play tasks of the population that it began with.
    """

    config: PopulationConfig
    tasks: Sequence[Task]  # of the split
    seed: int
    world: EnvFamily | None = None
    members: tuple[Member, ...] = ()
    history: TaskHistory = field(init=False)
    maker: MakesTasks | None = field(init=False)
    bounds: Mapping[str, Bounds] = field(init=False)  # of the numbers in tasks' data that may be changed
    made: int = 0  # proposals that joined after the newest step
    refused: int = 0  # and those that did not
    dropped: int = 0  # tasks that were not accepted when they had been played
    _eras: list[Era] = field(init=False)
    _next: int = 0  # above the number of every slot drawn so far

    def __post_init__(self) -> None:
        rng = np.random.default_rng([self.seed, PROPOSALS])
        count = min(self.config.start, self._available)
        first = rng.choice(self._available, count, replace=False, shuffle=True)
        found = {task.id: Member(task) for task in (self.tasks[int(index)] for index in first)}
        for _ in range(count - len(found)):  # the split lists tasks several times
            if (member := self._drawn(rng, found.keys())) is not None:
                found[member.task.id] = member
        self.members = tuple(found.values())
        pool = [member.task for member in self.members]
        self.history = TaskHistory([], 0, self.seed).of_pool(pool, np.zeros(0, dtype=np.int64))
        self.maker, self.bounds = _maker(self.world, pool)
        if self.maker is not None:
            self.config.proposer.check(self.bounds)
        self._eras = [self._era()]

    @property
    def _available(self) -> int:
        """Returns how many tasks of the split may be drawn."""
        return min(len(self.tasks), self.config.base.max_tasks)

    def draw(self, slot: int, redraw: int = 0) -> Task:
        self._next = max(self._next, slot + 1)
        era = next((era for era in reversed(self._eras) if era.draws.first <= slot), self._eras[0])
        return era.members[era.draws.task(self.seed, slot, redraw)].task

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        unseen = ~self.history.seen
        self.history.observe(groups, scores)
        self._renew(sum(group.origin == "policy" for group in groups), unseen & self.history.seen)
        if self._eras[-1].draws.first == self._next:
            self._eras.pop()  # no slot began since
        self._eras = [*self._eras[1 - MAX_DRAWS :], self._era()]

    def observe_evaluation(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        self.history.observe_evaluation(groups, scores)

    def metrics(self) -> Mapping[str, float]:
        """Returns what is believed of the population, as other curricula do; how many tasks were made, how many
        proposals were refused, and how many tasks were not accepted after the newest step; and, of a task that is drawn
        next, the expected number of edits that made it, and of each number in its data that may be changed."""
        chances = self._eras[-1].draws.weights
        edits = np.array([member.edits for member in self.members])
        values = {
            "population": float(len(self.members)),
            "tasks_made": float(self.made),
            "tasks_refused": float(self.refused),
            "tasks_dropped": float(self.dropped),
            "drawn_edits": float(chances @ edits),
        }
        for key in self.bounds:
            found = [member.task.data.get(key) for member in self.members]
            has = np.array([isinstance(value, int | float) for value in found])
            numbers = np.array([value if isinstance(value, int | float) else 0.0 for value in found])
            values[f"drawn_{key}"] = float(normalised(np.where(has, chances, 0.0)) @ numbers)
        return beliefs(self.history, chances, predicted(self.config.base, self.history)) | values

    def state(self) -> Mapping[str, Any]:
        known = {member.task.id: member for era in self._eras for member in era.members}
        number = {id: number for number, id in enumerate(known)}
        eras = [
            {"first": era.draws.first, "clock": era.draws.clock, "weights": era.draws.weights}
            | {"members": np.array([number[member.task.id] for member in era.members])}
            for era in self._eras
        ]
        tasks = [{"task": to_plain(member.task), "edits": member.edits} for member in known.values()]
        return {"tasks": tasks, "eras": eras, "history": self.history.state(), "next": self._next}

    def restore(self, state: Mapping[str, Any]) -> None:
        known = [Member(from_plain(each["task"], Task), each["edits"]) for each in state["tasks"]]
        self._eras = [
            Era(
                Draws(era["first"], era["clock"], np.array(era["weights"])),
                tuple(known[int(number)] for number in era["members"]),
            )
            for era in state["eras"]
        ]
        self.members = self._eras[-1].members
        pool = [member.task for member in self.members]
        self.history = TaskHistory(pool, len(pool), self.seed)
        self.history.restore(state["history"])
        self._next = state["next"]

    def _era(self) -> Era:
        weights = normalised(self.config.draw_weights(self.history))
        return Era(Draws(self._next, self.history.clock, weights), self.members)

    def _renew(self, played: int, first: NDArray[np.bool_]) -> None:
        """Adds as many new tasks as the next step is to play, if it plays as many as this one, and lets go of those
        that are not accepted after they were played for the `first` time, and of those that are worth least where there
        are too many."""
        self.made = self.refused = 0
        new = self._newcomers(round(self.config.new * played) - int(np.count_nonzero(~self.history.seen)))
        leaving = first & self._unaccepted()
        self.dropped = int(np.count_nonzero(leaving))
        kept = self._kept(self.config.capacity - len(new), leaving)
        self.members = (*(self.members[index] for index in kept), *new)
        self.history = self.history.of_pool([member.task for member in self.members], kept)

    def _unaccepted(self) -> NDArray[np.bool_]:
        """Returns which tasks were made, and are solved too rarely or too often: (n,)."""
        low, high = self.config.accept
        made = np.array([MADE in member.task.tags for member in self.members])
        return made & ((self.history.success < low) | (self.history.success > high))

    def _kept(self, room: int, leaving: NDArray[np.bool_]) -> IntArray:
        """Returns the numbers of the `room` tasks that stay: those that were not played yet, then the others by what
        they are worth, the newest first among equals; in their order. One stays in any case."""
        worth = np.where(self.history.seen, self.config.worth(self.history), np.inf)
        order = np.lexsort((-np.arange(len(worth)), -worth, leaving))
        staying = min(max(room, 0), int(np.count_nonzero(~leaving)))
        return np.sort(order[: max(staying, 1)])

    def _newcomers(self, count: int) -> list[Member]:
        rng = np.random.default_rng([self.seed, self.history.clock, PROPOSALS])
        known = {member.task.id for member in self.members}
        chances, seen = np.zeros(len(self.members)), self.history.seen
        chances[seen] = normalised(self.config.worth(self.history)[seen])
        found: list[Member] = []
        for _ in range(min(count, self.config.capacity - 1)):
            member, makes = None, rng.random() < self.config.made
            if makes and self.maker is not None and seen.any():
                member = self._proposed(rng, self.maker, chances, known)
            member = member or self._drawn(rng, known)
            if member is not None:
                known.add(member.task.id)
                found.append(member)
        return found

    def _proposed(self, rng: np.random.Generator, maker: MakesTasks, chances: Array, known: set[str]) -> Member | None:
        """Returns a task that was made of one which is drawn by `chances`; None where all proposals were refused."""
        for _ in range(TRIES):
            parent = int(rng.choice(len(chances), p=chances))
            task = self.config.proposer.propose(self.history, parent, maker, rng)
            task = None if task is None else replace(task, tags=tuple(dict.fromkeys((*task.tags, MADE))))
            if task is not None and task.id not in known and not self._held_out(task):
                self.made += 1
                return Member(task, self.members[parent].edits + 1)
            self.refused += 1
        return None

    def _drawn(self, rng: np.random.Generator, known: Collection[str]) -> Member | None:
        """Returns a random task of the split; None where those that were tried are in the population already."""
        tried = (self.tasks[int(index)] for index in rng.integers(self._available, size=TRIES))
        return next((Member(task) for task in tried if task.id not in known), None)

    def _held_out(self, task: Task) -> bool:
        return task.split != self.config.base.split or replace(task, split="test").id in self._test_ids

    @cached_property
    def _test_ids(self) -> frozenset[str]:
        tests = () if self.world is None else self.world.tasks("test")
        return frozenset(tests[index].id for index in range(min(len(tests), MAX_HELD_OUT)))


def _maker(world: EnvFamily | None, pool: Sequence[Task]) -> tuple[MakesTasks | None, Mapping[str, Bounds]]:
    """Returns the world as one that makes tasks, and the bounds of all numbers that it lets be changed in these tasks.

    Raises `ConfigError` where it lets none be changed.
    """
    if world is None:
        return None, {}
    bounds: dict[str, Bounds] = {}
    if isinstance(world, MakesTasks):
        for task in pool:
            bounds |= world.bounds(task)
        if bounds:
            return world, bounds
    raise ConfigError(
        f"the curriculum makes tasks, but {type(world).__name__} makes none of data: expected a world with `bounds` "
        "and `make_task`; for this one take a curriculum that draws the tasks of its split, such as {name = 'plr'}"
    )
