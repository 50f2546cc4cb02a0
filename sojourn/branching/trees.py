"""Plays a task as trees: each play may fork before any of its turns, and every path to a leaf is an episode.

A branch shares the turns before its fork with the play that it left, the same `Sample` objects, and goes on with a
sampling seed of its own. Its environment is a `fork` of the other's, where it has one; else, and where an attempt is
repeated, the same actions are performed in a new play of the task. Which plays fork, and where, follows from each play
alone or, between rounds, from all plays that are over by then, so that a tree does not depend on timing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from sojourn.abilities import Forkable, ForkableSeat, HasExpert, asks_critic, env_needs
from sojourn.blame import EnvCall, close
from sojourn.branching.budget import Room, affordable, spent
from sojourn.branching.origin import Origin
from sojourn.branching.rule import Branching, BranchPoint, Fork, GroupBranching
from sojourn.envs.expert import expert_message
from sojourn.errors import ConfigError
from sojourn.protocols import AgentContext, Env, Seat
from sojourn.rollout.play import Moment
from sojourn.rollout.runner import Runner, SamplerFor
from sojourn.seeds import seed_of
from sojourn.types import Branch, Ending, Episode, Group, Message, SamplingParams, Task

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
    trees = _Trees(runner, rule, task, params, label, sampler_for)
    try:
        async with trees.tasks:
            for number in range(size):
                trees.begin((number,), None, Room.of(rule), 0)
        while chosen := trees.next_round():
            async with asyncio.TaskGroup() as trees.tasks:
                for course, fork, room in chosen:
                    await course.begin(fork, room, over=True)
    finally:
        await trees.discard_copies()
    return Group(slot, task, tuple(trees.running[path].result() for path in sorted(trees.running)))


class _Begun(NamedTuple):
    """A branch that is to begin: the play that forks, where, and the branch's room."""

    course: _Course
    fork: Fork
    room: Room


@dataclass
class _Trees:
    """The plays of one task while they run, by their paths."""

    runner: Runner
    rule: Branching
    task: Task
    params: SamplingParams
    label: str
    sampler_for: SamplerFor | None
    tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    running: dict[Path, asyncio.Task[Episode]] = field(default_factory=dict[Path, "asyncio.Task[Episode]"])
    courses: dict[Path, _Course] = field(default_factory=dict[Path, "_Course"])
    origins: list[Origin] = field(default_factory=list[Origin])
    rounds: int = 0  # that are over

    def begin(self, path: Path, origin: Origin | None, room: Room, forks: int) -> None:
        if origin is not None:
            self.origins.append(origin)
        course = self.courses[path] = _Course(self, path, origin, room, forks)
        self.running[path] = self.tasks.create_task(self._play(path, course))

    def next_round(self) -> list[_Begun]:
        """Asks a rule that looks at all plays which of them fork, now that all are over; returns the branches that
        there is room for. What room a tree has is divided evenly between its branches."""
        if not isinstance(self.rule, GroupBranching):
            return []
        played = [(self.courses[path], running.result()) for path, running in sorted(self.running.items())]
        ended = [course for course, episode in played if episode.error is None]
        rooms = {root: self._room_of(root) for root, *_ in self.running}
        self.rounds += 1
        points = [course.shown(rooms[course.path[0]].plays, self.rounds) for course in ended]
        wanted: dict[int, list[tuple[_Course, Fork]]] = {root: [] for root in rooms}
        for fork in self.rule.after_round(self.rounds, points) if points else ():
            if not 0 <= fork.play < len(ended):
                raise ConfigError(
                    f"the rule {type(self.rule).__name__} forks play {fork.play} of those that it was shown: expected "
                    f"a number from 0 to {len(ended) - 1}"
                )
            course = ended[fork.play]
            wanted[course.path[0]] += [(course, fork)] * fork.count
        return [begun for root, forks in wanted.items() for begun in _fitting(rooms[root], forks)]

    def _room_of(self, root: int) -> Room:
        """Returns what room a tree has left while none of its plays goes on."""
        plays, budget = Room.of(self.rule)
        own = [self.courses[path] for path in self.running if path[0] == root]
        for end in (course.end for course in own if course.end is not None):
            budget = budget.less(spent(end))
        return Room(plays + 1 - len(own) if budget.some else 0, budget)

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

    def rng(self, path: Path, *parts: object) -> np.random.Generator:
        return np.random.default_rng(seed_of(self.runner.seed, self.name(path), self.task.id, *parts, "fork"))

    async def _play(self, path: Path, course: _Course) -> Episode:
        seed = seed_of(self.runner.seed, self.label, self.task.id, _written(path))
        params, origin = replace(self.params, seed=seed), course.origin
        episode = await self.runner.play_episode(self.task, params, self.name(path), self.sampler_for, course=course)
        return episode if origin is None else replace(episode, branch=origin.branch)


def _fitting(room: Room, wanted: Sequence[tuple[_Course, Fork]]) -> list[_Begun]:
    """Returns the first branches that a tree wants, as many as it has room for."""
    fitting = wanted[: room.plays]
    begun = fitting[: affordable(((course.ending, fork) for course, fork in fitting), room.budget)]
    sides = max(len(begun), 1)
    each = Room((room.plays - len(begun)) // sides, room.budget.divided(sides))
    return [_Begun(course, fork, each) for course, fork in begun]


def _written(path: Path) -> str:
    return ".".join(map(str, path))


class _Passed(NamedTuple):
    """A moment of a play that it may fork from, and its seats then."""

    moment: Moment
    seats: Mapping[str, ForkableSeat]


@dataclass
class _Course:
    """Is one play of a tree, and decides where it begins and forks. `room` is what may come of it, and there were
    `forks` forks on the way to it; the other fields are of the present attempt."""

    trees: _Trees
    path: Path
    origin: Origin | None
    room: Room
    forks: int
    left: Room = field(init=False)  # of `room`
    forked: int = 0  # times, `forks` included
    branches: int = 0
    seats: dict[str, Seat] = field(default_factory=dict[str, Seat])
    passed: list[_Passed] = field(default_factory=list[_Passed])  # the moments from the start on
    actors: list[str] = field(default_factory=list[str])
    experts: list[Message | None] = field(default_factory=list[Message | None])
    end: BranchPoint | None = None
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

    @property
    def ending(self) -> BranchPoint:
        """Returns the play at its end, which it has reached."""
        assert self.end is not None
        return self.end

    async def open(self, make: Callable[[], Env], call: EnvCall) -> Env:
        self.trees.drop_branches(self.path)
        self.left, self.forked, self.branches, self.call, self.end = self.room, self.forks, 0, call, None
        self.seats, self.passed = {}, []
        self.actors, self.experts = ([], []) if self.origin is None else self.origin.turns()
        self.env = make() if self.origin is None else await self.origin.open(make)
        return self.env

    def seat(self, context: AgentContext) -> Seat:
        origin, name = self.origin, context.name
        self.seats[name] = self.trees.runner.seat(context) if origin is None else origin.seats[name].fork(context)
        return self.seats[name]

    async def before_turn(self, moment: Moment) -> None:
        self.passed.append(
            _Passed(moment, {name: _forkable(_forkable(seat).fork()) for name, seat in self.seats.items()})
        )
        if self.origin is None or moment.turns > self.began:
            await self._ask()
        if "expert" in env_needs(self.trees.rule):
            self.experts.append(await self._expert())
        self.actors.append(moment.observation.agent)

    async def ended(self) -> None:
        await self._ask(over=True)

    def shown(self, room: int, number: int) -> BranchPoint:
        """Returns the play as it is shown after a round."""
        return replace(self.ending, room=room, rng=self.trees.rng(self.path, "round", number))

    async def begin(self, fork: Fork, room: Room, *, over: bool) -> None:
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
        before = tuple(self.actors[: moment.turns]), tuple(self.experts[: moment.turns])
        origin = Origin(moment, copies, *before, branch, self.call)
        if fork.turn == last and not over and isinstance(self.env, Forkable):
            await origin.fork(self.env)
        self.trees.begin((*self.path, self.branches), origin, room, self.forked + over)
        self.branches += 1

    async def _ask(self, *, over: bool = False) -> None:
        """Asks the rule, and begins the branches that it wants, as far as there is room for them. What room is left is
        divided evenly between them and this play, if that goes on."""
        if not (self.left.plays or over):
            return
        point = self._point(over)
        if over and asks_critic(self.trees.rule):
            point = replace(point, values=await self._values(point))
        self.end = point if over else None
        used = spent(point)
        budget = self.left.budget.less(used)
        if not (self.left.plays and budget.some):
            return
        wanted = [fork for fork in self.trees.rule(point) for _ in range(fork.count)][: self.left.plays]
        wanted = wanted[: affordable(((point, fork) for fork in wanted), budget)]
        if not wanted:
            return
        plays, sides = self.left.plays - len(wanted), len(wanted) + (not over)
        each = Room(plays // sides, budget.divided(sides))
        self.left = Room(plays - len(wanted) * each.plays, each.budget.plus(used))
        self.forked += not over
        for fork in wanted:
            await self.begin(fork, each, over=over)

    def _point(self, over: bool) -> BranchPoint:
        """Returns the play as it stands."""
        now = {name: _forkable(seat).fork().finish(Ending.TURNS) for name, seat in self.seats.items()}
        rng, actors, experts = self.trees.rng(self.path, len(self.actors)), tuple(self.actors), tuple(self.experts)
        return BranchPoint(now, actors, over, self.began, self.forked, self.left.plays, rng, experts)

    async def _values(self, point: BranchPoint) -> tuple[float, ...]:
        """Returns what the critic expected before each turn of the play."""
        critic = self.trees.runner.critic
        assert critic is not None, "a rule that asks the critic is given one"
        each = {name: iter(await critic.values(one)) for name, one in point.trajectories.items()}
        return tuple(next(each[actor], math.nan) for actor in point.actors)

    async def _expert(self) -> Message | None:
        """Returns what the world's expert would do now."""
        if not isinstance(self.env, HasExpert):
            return None
        assert self.call is not None
        return await self.call(partial(expert_message, self.env))


def _forkable(seat: Seat) -> ForkableSeat:
    if not isinstance(seat, ForkableSeat):
        raise ConfigError(
            f"the agent's {type(seat).__name__} has no fork(), so its plays cannot branch: leave `branching` out, "
            "or choose another agent, such as plain"
        )
    return seat
