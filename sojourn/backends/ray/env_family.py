"""A family of environments whose plays run in actors, as the driver sees it; the actors are `EnvWorker`."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError

from sojourn.abilities import HasCapacity, HasWorlds, PartLoad, PartState, capacity
from sojourn.backends.ray.cluster import RETRY_S, SLOWEST_RETRY_S, code_digest
from sojourn.backends.ray.env_worker import BLOBS, LOST, Answer, Expert, import_paths, pickled_family
from sojourn.backends.ray.reports import Contact, Heard
from sojourn.errors import ActionError, BudgetError, ConfigError, InfrastructureError, LostPlayError, cause
from sojourn.gauge import Gauge
from sojourn.protocols import EnvFamily
from sojourn.types import Message, Observation, Step, Task

Start = Callable[..., Any]  # is given a number and arguments, and returns the actor of this number; -1 reserves nothing
Path = tuple[int, ...]  # to a world, by its numbers within the family
# what a family may offer that plays no part: it is that of the world in this process
PASSED_ON = ("seats", "lowest_reward", "next_task", "risks", "relabelled", "bounds", "make_task")
OPEN_TIMEOUT_S, ASK_TIMEOUT_S = 600.0, 60.0
STUCK_S = 60.0  # a worker that does not answer for so long is stuck
log = logging.getLogger(__name__)
MOST_KNOWN = 10_000  # tasks
POLICYS = (ActionError, BudgetError)  # errors that are the agent's
ASKED: Path = (-1,)  # the world, for counting, of plays that are only made to be asked what they can do


@dataclass(eq=False)
class Worker:
    """A worker as the driver sees it. Each time that its process ends, another `life` begins, which has no plays."""

    actor: Any
    up: bool = False
    life: int = 0
    failure: BaseException | None = None  # why it could not be opened, last
    placed: int = 0  # plays that began there and are open
    open: Counter[Path] = field(default_factory=Counter[Path])  # all plays, forks included, by their worlds
    opened: int = 0  # how often it has opened the world
    begun: int = 0  # plays, since the last `part_load`
    lost: int = 0  # plays that ended with its process
    failed: int = 0  # calls of plays that failed otherwise than by their action
    gauge: Gauge = field(default_factory=Gauge)  # of its plays
    contact: Contact = field(default_factory=Contact)

    def take_on(self, world: Path) -> None:
        """Counts a play that begins here."""
        self.open[world] += 1
        self.begun += 1
        self.gauge.add(1)

    async def part_load(self, name: str) -> PartLoad:
        """Returns what the worker does; one that is down is not asked."""
        busy, begun, self.begun = self.gauge.take(), self.begun, 0
        numbers: dict[str, float] = {"busy_share": busy.share, "plays_mean": busy.mean, "plays_begun": begun}
        numbers |= {"restarts": max(self.opened - 1, 0), "plays_lost": self.lost, "failures": self.failed}
        numbers |= {"plays": self.open.total()}
        heard = await self._heard()
        if heard.answer is not None:
            self.contact.report = heard.answer
        return PartLoad(
            name=name,
            kind="environment worker",
            state=heard.state,
            seen_s=self.contact.seen_s,
            note=heard.note,
            facts=self.contact.report.facts,
            numbers={**numbers, **(self.contact.report.numbers if heard.answer is not None else {})},
        )

    async def _heard(self) -> Heard:
        if self.up:
            return await self.contact.ask(self.actor.report.remote)
        why = "its process has ended" if self.failure is None else cause(self.failure)
        return Heard(PartState.DOWN if self.opened else PartState.LOADING, note=why if self.opened else "")


class Place(NamedTuple):
    """The place of a play: a worker and which of its lives."""

    worker: Worker
    life: int
    world: Path
    forked: bool = False


@dataclass(eq=False)
class Workers:
    """`count` workers of one family, from `first` on. A new play goes where the fewest plays are, of those with room
    for it: each has room for what the world allows, and for no more than `most` plays (0: no limit)."""

    start: Start
    count: int
    first: int = 0
    most: int = 0
    stuck_s: float = STUCK_S
    family: bytes = b""
    all: list[Worker] = field(default_factory=list[Worker])
    _watching: list[asyncio.Task[None]] = field(default_factory=list["asyncio.Task[None]"])
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def open(self) -> None:
        """Starts the workers, unless that is done, and waits until all have opened the world."""
        async with self._opening:
            if self.all:
                return
            paths = import_paths()
            numbers = range(self.first, self.first + self.count)
            self.all = [Worker(self.start(number, self.family, paths)) for number in numbers]
            self._watching = [asyncio.create_task(self._watch(worker)) for worker in self.all]
            try:
                async with asyncio.timeout(OPEN_TIMEOUT_S):
                    await self._until(lambda: all(worker.up or worker.failure is not None for worker in self.all))
                for worker in self.all:
                    if worker.failure is not None:
                        raise worker.failure
            except TimeoutError:
                await self.close()
                raise InfrastructureError(
                    f"{self.count} environment workers did not start within {OPEN_TIMEOUT_S:.0f} s: does the cluster "
                    "have room for them?"
                ) from None
            except BaseException:
                await self.close()
                raise

    async def place(self, world: Path, room: float) -> Place:
        """Waits for a place for a play of a world that has so much room in each worker. Raises what keeps all workers
        from opening the world."""
        while True:
            if free := [w for w in self.all if w.up and w.open[world] < room and not 0 < self.most <= w.placed]:
                chosen = min(free, key=lambda worker: (worker.placed, worker.open.total()))
                chosen.placed += 1
                chosen.take_on(world)
                return Place(chosen, chosen.life, world)
            failed = [worker.failure for worker in self.all if isinstance(worker.failure, ConfigError)]
            if failed and not any(worker.up for worker in self.all):
                raise failed[0]
            await self._change()

    def beside(self, place: Place) -> Place:
        """Returns the place of a fork of the play in a place."""
        if place.life == place.worker.life:
            place.worker.take_on(place.world)
        return place._replace(forked=True)

    def give_back(self, place: Place) -> None:
        if place.life == place.worker.life:
            place.worker.placed -= not place.forked
            place.worker.open[place.world] -= 1
            place.worker.gauge.add(-1)
            self._changed.set()

    async def ask(self, place: Place, method: str, *arguments: Any) -> Answer:
        """Returns the answer of a worker. Raises `LostPlayError` where its process has ended."""
        if place.life != place.worker.life:
            raise LostPlayError(LOST)
        try:
            answer: Answer = pickle.loads(await getattr(place.worker.actor, method).remote(*arguments))
        except RayTaskError as error:
            raise InfrastructureError(f"a worker cannot read what it is sent: {cause(error.cause)}") from error
        except RayError:
            self._lose(place.worker, place.life)
            raise LostPlayError(LOST) from None
        place.worker.contact.seen()
        place.worker.failed += isinstance(answer.error, Exception) and not isinstance(answer.error, POLICYS)
        return answer

    def ask_now(self, worker: Worker | None, method: str, *arguments: Any) -> Any:
        """Returns what a worker, or any that is up, answers, and waits for it where it is called."""
        worker = worker or next((worker for worker in self.all if worker.up), None)
        if worker is None:
            raise LostPlayError("no environment worker is up: the world is not open, or all their processes have ended")
        try:
            answer: Answer = pickle.loads(
                ray.get(getattr(worker.actor, method).remote(*arguments), timeout=ASK_TIMEOUT_S)
            )
        except RayError:
            raise LostPlayError(LOST) from None
        return answer.get()

    async def part_loads(self, name: str) -> list[PartLoad]:
        """Returns what each worker does."""
        numbered = enumerate(self.all)
        return await asyncio.gather(*(worker.part_load(f"{name} {n}") for n, worker in numbered))

    async def close(self) -> int:
        """Ends the workers, and returns how many plays were still open."""
        watching, self._watching, workers, self.all = self._watching, [], self.all, []
        for watch in watching:
            watch.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        try:
            return sum(await asyncio.gather(*(self._end(worker) for worker in workers if worker.up)))
        finally:
            for worker in workers:
                worker.contact.close()
                ray.kill(worker.actor)

    async def _end(self, worker: Worker) -> int:
        try:
            return (await self.ask(Place(worker, worker.life, ()), "end")).get()
        except LostPlayError:
            return 0

    async def _watch(self, worker: Worker) -> None:
        """Has a worker open the world, and again whenever its process has ended and Ray has started another one. A
        process that is stuck is ended, too: no play there would ever go on."""
        pause_s = RETRY_S
        while True:
            try:
                answer: Answer = pickle.loads(await worker.actor.ready.remote(code_digest()))
                worker.up, worker.failure = answer.error is None, answer.error
                self._changed.set()
                if answer.error is None:
                    worker.opened += 1
                    pause_s, life = RETRY_S, worker.life
                    while worker.life == life:
                        async with asyncio.timeout(self.stuck_s):
                            await worker.actor.live.remote(self.stuck_s / 12)
                else:
                    log.warning("a worker process cannot open the world: %s", cause(answer.error))
            except RayError:
                log.warning("an environment worker is down, and is waited for")
            except TimeoutError:
                log.warning("an environment worker does not answer: it is ended, and started again")
                ray.kill(worker.actor, no_restart=False)
            self._lose(worker, worker.life)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, SLOWEST_RETRY_S)

    def _lose(self, worker: Worker, life: int) -> None:
        if worker.life == life:
            worker.life, worker.up, worker.placed = life + 1, False, 0
            worker.lost += worker.open.total()
            worker.gauge.add(-worker.gauge.count)
            worker.open.clear()
            self._changed.set()

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


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
        await self._workers.open()
        world = self._world.of_task(self._task)
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
