"""A family of environments whose plays run in actors, as the driver sees it; the actors are `EnvWorker`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sojourn.abilities import HasCapacity, HasWorlds, PartLoad, capacity
from sojourn.backends.ray.env_worker import BLOBS, Answer, Expert, pickled_family
from sojourn.backends.ray.env_workers import Path, Place, Start, Workers
from sojourn.errors import InfrastructureError, LostPlayError
from sojourn.event_loop import off_the_clock
from sojourn.protocols import EnvFamily
from sojourn.types import Message, Observation, Step, Task

# what a family may offer that plays no part: it is that of the world in this process
PASSED_ON = (
    *("seats", "lowest_reward", "next_task", "risks", "relabelled", "bounds", "make_task"),
    *("proposal", "proposed", "written", "proposal_turns"),
)
MOST_KNOWN = 10_000  # tasks
ASKED: Path = (-1,)  # the world, for counting, of plays that are only made to be asked what they can do


@dataclass(eq=False)
class Shared:
    """Holds what the worlds of a remote family share. `alone` is a worker that holds one play at a time, to tell
    whether it ends the process; it is started when it is first needed."""

    workers: Workers
    alone: Workers
    known: dict[tuple[Path, str], frozenset[str]] = field(default_factory=dict[tuple[Path, str], frozenset[str]])
    numbers: count[int] = field(default_factory=count)
    background: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)


class RemoteWorld:
    """A world whose plays are elsewhere, or one of the worlds of such a family: `path` leads to it. Its tasks, and what
    it offers besides its plays, are those of `base`."""

    def __init__(self, base: EnvFamily, shared: Shared, path: Path = ()) -> None:
        self.base, self.shared, self.path = base, shared, path
        for name in PASSED_ON:
            if hasattr(base, name):
                setattr(self, name, getattr(base, name))
        if isinstance(base, HasCapacity):
            self.capacity = base.capacity * shared.workers.count
        if isinstance(base, HasWorlds):
            self.worlds = tuple(RemoteWorld(world, shared, (*path, n)) for n, world in enumerate(base.worlds))
            self.world_of = self._world_of

    def tasks(self, split: str) -> Sequence[Task]:
        return self.base.tasks(split)

    def make(self, task: Task) -> RemoteEnv:
        return RemoteEnv(self, task, self.shared.workers)

    async def prepare(self, task: Task) -> None:
        """Asks a worker what plays of a task can do, unless that is known."""
        if (self.path, task.id) in self.shared.known:
            return
        with off_the_clock():
            place = await self.shared.workers.place(ASKED, float("inf"))
        try:
            self._remember(task, (await self.shared.workers.ask(place, "abilities", self.path, task)).get())
        finally:
            self.shared.workers.give_back(place)

    def make_alone(self, task: Task) -> RemoteEnv:
        return RemoteEnv(self, task, self.shared.alone)

    def abilities_of(self, task: Task) -> frozenset[str]:
        """Returns what plays of a task can do."""
        if (self.path, task.id) not in self.shared.known:
            self._remember(task, self.shared.workers.ask_now(None, "abilities", self.path, task))
        return self.shared.known[self.path, task.id]

    def of_task(self, task: Task) -> RemoteWorld:
        """Returns the world that a task belongs to."""
        return self._world_of(task) if isinstance(self.base, HasWorlds) else self

    def _remember(self, task: Task, abilities: frozenset[str]) -> None:
        if len(self.shared.known) >= MOST_KNOWN:
            self.shared.known.clear()
        self.shared.known[self.path, task.id] = abilities

    def _world_of(self, task: Task) -> RemoteWorld:
        assert isinstance(self.base, HasWorlds)
        world = self.base.world_of(task)
        return next(mine for mine in self.worlds if mine.base is world)


class RemoteFamily(RemoteWorld):
    """The family with the tasks of `base` whose plays run in `count` workers, which `start` starts. `left` is how many
    plays were still open when it was closed."""

    def __init__(self, base: EnvFamily, count: int, start: Start) -> None:
        super().__init__(base, Shared(Workers(start, count), Workers(start, 1, first=-1, most=1)))
        self.left = 0

    async def open(self) -> None:
        shared = self.shared
        shared.workers.family = shared.alone.family = pickled_family(self.base)
        await shared.workers.open()

    async def part_loads(self) -> list[PartLoad]:
        """Returns what each worker does (`ReportsParts`)."""
        alone = await self.shared.alone.part_loads("worker of single plays")
        return [*await self.shared.workers.part_loads("worker"), *alone]

    async def close(self) -> None:
        await asyncio.gather(*self.shared.background, return_exceptions=True)
        self.left = sum([await workers.close() for workers in (self.shared.workers, self.shared.alone)])


class RemoteEnv:
    """A play in a worker, which can do what that play can do. It is made there when it starts."""

    def __init__(self, world: RemoteWorld, task: Task, workers: Workers) -> None:
        self._world, self._task, self._workers = world, task, workers
        self._number = next(world.shared.numbers)
        self._place: Place | None = None
        self._abilities = frozenset[str]()
        self._key: str | BaseException | None = None
        self._images: dict[str, bytes] = {}
        self._native: dict[str, Message] = {}  # the expert's action by its text
        self._offer(world.abilities_of(task))

    async def start(self) -> Observation:
        world = self._world.of_task(self._task)
        with off_the_clock():
            await self._workers.open()
            self._place = await self._workers.place(world.path, capacity(world.base, 1 << 30))
        return self._take(await self._ask("start", self._world.path, self._task))

    async def step(self, agent: str, action: Message) -> Step:
        return self._take(await self._ask("step", agent, action))

    async def close(self) -> None:
        place, self._place = self._place, None
        if place is None:
            return
        try:
            (await self._workers.ask(place, "close", self._number)).get()
        except LostPlayError:  # nothing is left to be closed
            pass
        finally:
            self._workers.give_back(place)

    async def _fork(self) -> RemoteEnv:
        copy = RemoteEnv(self._world, self._task, self._workers)
        if self._place is None:
            return copy
        copy._place, copy._images = self._workers.beside(self._place), dict(self._images)
        try:
            copy._take(await self._ask("fork", copy._number))
        except BaseException:  # cancellation included: nobody else knows the copy
            self._world.shared.spawn(copy.close())
            raise
        return copy

    async def _expert(self) -> str:
        expert: Expert = self._take(await self._ask("expert"))
        self._native = {} if expert.native is None else {expert.text: expert.native}
        return expert.text

    def _native_action(self, text: str) -> Message:
        if text in self._native:
            return self._native[text]
        worker = None if self._place is None else self._place.worker
        return self._workers.ask_now(worker, "native_action", self._number, text)

    def _state_key(self) -> str:
        if isinstance(self._key, BaseException):
            raise self._key
        if self._key is None:
            raise InfrastructureError("a play has no state key before it has started")
        return self._key

    async def _ask(self, method: str, *arguments: Any) -> Answer:
        if self._place is None:
            raise InfrastructureError(f"{method}() of a play that has not started, or is closed")
        return await self._workers.ask(self._place, method, self._number, *arguments)

    def _take(self, answer: Answer) -> Any:
        """Takes over what the play shows by now, and returns the value of an answer, or raises its error."""
        if answer.error is None or answer.abilities:
            self._offer(answer.abilities)
            self._key = answer.key
        self._images.update(answer.blobs)
        return answer.get()

    def _offer(self, abilities: frozenset[str]) -> None:
        for name in self._abilities - abilities:
            delattr(self, name)
        for name in abilities - self._abilities:
            setattr(self, name, self._images if name == BLOBS else getattr(self, f"_{name}"))
        self._abilities = abilities
