"""Plays a task as trees: each play may fork before any of its turns, and every path to a leaf is an episode.

A branch shares the turns before its fork with the play that it left, the same `Sample` objects, and goes on with a
sampling seed of its own. Its environment is a `fork` of the other's, where it has one; else, and where an attempt is
repeated, the same actions are performed in a new play of the task. Which plays fork, and where, follows from each play
alone, so that a tree does not depend on timing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from sojourn.abilities import Forkable, ForkableSeat
from sojourn.blame import EnvCall, close
from sojourn.branching.rule import Branching, BranchPoint, Fork
from sojourn.errors import ActionError, ConfigError, InfrastructureError, WorldError
from sojourn.protocols import AgentContext, Env, Seat
from sojourn.rollout.play import Moment
from sojourn.rollout.runner import Runner, SamplerFor, seed_of
from sojourn.types import Branch, Ending, Episode, Group, SamplingParams, Task

Path = tuple[int, ...]  # the number of a root, then which of the branches of each play leads here


async def play_trees(
    runner: Runner,
    rule: Branching,
    task: Task,
    slot: int,
    size: int,
    params: SamplingParams,
    label: str,
    *,
    sampler_for: SamplerFor | None = None,
) -> Group:
    """Plays a task from its start `size` times, with all branches of these plays. Returns a group of their episodes, in
    which each play comes before its branches."""
    tasks = asyncio.TaskGroup()
    trees = _Trees(runner, rule, task, params, label, sampler_for, tasks)
    try:
        async with tasks:
            for number in range(size):
                trees.begin((number,), None, rule.leaves - 1, 0)
    finally:
        await trees.discard_copies()
    return Group(slot, task, tuple(trees.running[path].result() for path in sorted(trees.running)))


@dataclass
class _Trees:
    """The plays of one task while they run, by their paths."""

    runner: Runner
    rule: Branching
    task: Task
    params: SamplingParams
    label: str
    sampler_for: SamplerFor | None
    tasks: asyncio.TaskGroup
    running: dict[Path, asyncio.Task[Episode]] = field(default_factory=dict[Path, "asyncio.Task[Episode]"])
    origins: list[_Origin] = field(default_factory=list["_Origin"])

    def begin(self, path: Path, origin: _Origin | None, room: int, forks: int) -> None:
        if origin is not None:
            self.origins.append(origin)
        course = _Course(self, path, origin, room, forks)
        self.running[path] = self.tasks.create_task(self._play(path, course))

    def drop_branches(self, path: Path) -> None:
        """Cancels the branches of a play whose attempt failed: another attempt may come by other states."""
        for other in [p for p in self.running if len(p) > len(path) and p[: len(path)] == path]:
            self.running.pop(other).cancel()

    async def discard_copies(self) -> None:
        """Closes copies of environments that no play used, as their plays were dropped before they began."""
        for origin in self.origins:
            copy, origin.copy = origin.copy, None
            if copy is not None:
                await close(copy, origin.call)

    def name(self, path: Path) -> str:
        return f"{self.label}/{_written(path)}"

    def rng(self, path: Path, turn: int) -> np.random.Generator:
        return np.random.default_rng(seed_of(self.runner.seed, self.name(path), self.task.id, turn, "fork"))

    async def _play(self, path: Path, course: _Course) -> Episode:
        seed = seed_of(self.runner.seed, self.label, self.task.id, _written(path))
        params, origin = replace(self.params, seed=seed), course.origin
        episode = await self.runner.play_episode(self.task, params, self.name(path), self.sampler_for, course=course)
        return episode if origin is None else replace(episode, branch=origin.branch)


def _written(path: Path) -> str:
    return ".".join(map(str, path))


@dataclass
class _Origin:
    """Holds where a branch begins: a moment of another play, and copies of its seats and, if it can be forked, its
    environment. `call` calls the methods of an environment; `error` is that of a fork which failed."""

    moment: Moment
    seats: Mapping[str, ForkableSeat]
    actors: tuple[str, ...]  # of the turns before it
    branch: Branch
    call: EnvCall
    copy: Env | None = None
    error: Exception | None = None

    async def fork(self, env: Forkable) -> None:
        """Forks an environment for the branch. If that fails, so does the branch alone."""
        try:
            self.copy = await self.call(env.fork)
        except (ConfigError, WorldError):
            raise
        except Exception as error:
            self.error = error

    async def open(self, make: Callable[[], Env]) -> Env:
        """Returns an environment in the state of the moment; raises `InfrastructureError` where a replay differs."""
        error, copy, self.error, self.copy = self.error, self.copy, None, None
        if error is not None:
            raise error
        return await self._replayed(make()) if copy is None else copy

    async def _replayed(self, env: Env) -> Env:
        what = "gives another observation"
        try:
            shown = await self.call(env.start)
            for action in self.moment.performed:
                shown = (await self.call(env.step, *action)).observation
        except ActionError as error:
            what, shown = f"refuses an action that it had accepted ({error})", None
        except BaseException:  # cancellation included: nobody else knows the play
            await close(env, self.call)
            raise
        if shown == self.moment.observation:
            return env
        await close(env, self.call)
        raise InfrastructureError(
            f"the world is not deterministic: replayed for a branch, it {what} within {len(self.moment.performed)} "
            "actions"
        )


class _Passed(NamedTuple):
    """A moment of a play that it may fork from, and its seats then."""

    moment: Moment
    seats: Mapping[str, ForkableSeat]


@dataclass
class _Course:
    """Is one play of a tree, and decides where it begins and forks. `room` more plays may come of it, and there were
    `forks` forks on the way to it; the other fields are of the present attempt."""

    trees: _Trees
    path: Path
    origin: _Origin | None
    room: int
    forks: int
    left: int = 0  # of `room`
    forked: int = 0  # times, `forks` included
    branches: int = 0
    seats: dict[str, Seat] = field(default_factory=dict[str, Seat])
    passed: list[_Passed] = field(default_factory=list[_Passed])  # the moments from the start on
    actors: list[str] = field(default_factory=list[str])
    env: Env | None = None
    call: EnvCall | None = None

    @property
    def copies(self) -> int:
        return 0  # branches are plays of their own

    @property
    def start(self) -> Moment | None:
        return None if self.origin is None else self.origin.moment

    @property
    def began(self) -> int:
        return 0 if self.start is None else self.start.turns

    async def open(self, make: Callable[[], Env], call: EnvCall) -> Env:
        self.trees.drop_branches(self.path)
        self.left, self.forked, self.branches, self.call = self.room, self.forks, 0, call
        self.seats, self.passed, self.actors = {}, [], list(() if self.origin is None else self.origin.actors)
        self.env = make() if self.origin is None else await self.origin.open(make)
        return self.env

    def seat(self, context: AgentContext) -> Seat:
        origin, name = self.origin, context.name
        self.seats[name] = self.trees.runner.agent.seat(context) if origin is None else origin.seats[name].fork(context)
        return self.seats[name]

    async def before_turn(self, moment: Moment) -> None:
        self.passed.append(
            _Passed(moment, {name: _forkable(_forkable(seat).fork()) for name, seat in self.seats.items()})
        )
        if self.origin is None or moment.turns > self.began:
            await self._ask()
        self.actors.append(moment.observation.agent)

    async def ended(self) -> None:
        await self._ask(over=True)

    async def _ask(self, *, over: bool = False) -> None:
        """Asks the rule, and begins the branches that it wants, as far as there is room for them. What room is left is
        divided evenly between them and this play, if that goes on."""
        if not self.left:
            return
        now = {name: _forkable(seat).fork().finish(Ending.TURNS) for name, seat in self.seats.items()}
        rng = self.trees.rng(self.path, len(self.actors))
        point = BranchPoint(now, tuple(self.actors), over, self.began, self.forked, self.left, rng)
        wanted = [fork for fork in self.trees.rule(point) for _ in range(fork.count)][: self.left]
        if not wanted:
            return
        room = (self.left - len(wanted)) // (len(wanted) + (not over))  # of each
        self.left, self.forked = self.left - len(wanted) * (1 + room), self.forked + 1
        for fork in wanted:
            await self._begin(fork, room, over)

    async def _begin(self, fork: Fork, room: int, over: bool) -> None:
        """Begins one branch."""
        assert self.call is not None
        last = self.began + len(self.passed) - 1
        if not self.began <= fork.turn <= last:
            raise ConfigError(
                f"the rule {type(self.trees.rule).__name__} forks before turn {fork.turn} of a play whose own turns "
                f"are {self.began} to {last}: a play forks before its own turns only"
            )
        moment, seats = self.passed[fork.turn - self.began]
        turns = tuple(len(seat.fork().finish(Ending.TURNS).turns) for seat in seats.values())
        branch = Branch(f"{self.trees.name(self.path)}-{self.trees.task.id}", turns, fork.reason)
        copies = {name: _forkable(seat.fork()) for name, seat in seats.items()}
        origin = _Origin(moment, copies, tuple(self.actors[: moment.turns]), branch, self.call)
        if fork.turn == last and not over and isinstance(self.env, Forkable):
            await origin.fork(self.env)
        self.trees.begin((*self.path, self.branches), origin, room, self.forked)
        self.branches += 1


def _forkable(seat: Seat) -> ForkableSeat:
    if not isinstance(seat, ForkableSeat):
        raise ConfigError(
            f"the agent's {type(seat).__name__} has no fork(), so its plays cannot branch: leave `branching` out, "
            "or choose another agent, such as plain"
        )
    return seat
