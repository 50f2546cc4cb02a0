"""The workers of a family of environments, as the driver sees them; their actors are `EnvWorker`."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError

from sojourn.abilities import PartLoad, PartState
from sojourn.backends.ray.cluster import RETRY_S, SLOWEST_RETRY_S, code_digest
from sojourn.backends.ray.env_worker import LOST, Answer, import_paths
from sojourn.backends.ray.reports import Contact, Heard
from sojourn.errors import ActionError, BudgetError, ConfigError, InfrastructureError, LostPlayError, cause
from sojourn.gauge import Gauge

Start = Callable[..., Any]  # is given a number and arguments, and returns the actor of this number; -1 reserves nothing
Path = tuple[int, ...]  # to a world, by its numbers within the family
OPEN_TIMEOUT_S, ASK_TIMEOUT_S = 600.0, 60.0
STUCK_S = 60.0  # a worker that does not answer for so long is stuck
log = logging.getLogger(__name__)
POLICYS = (ActionError, BudgetError)  # errors that are the agent's


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
        busy, begun, self.begun = self.gauge.take(), self.begun, 0  # at once: what begins later is of the next one
        heard = await self._heard()  # which may last; what follows is of the life that answered
        numbers: dict[str, float] = {"busy_share": busy.share, "plays_mean": busy.mean, "plays_begun": begun}
        numbers |= {"restarts": max(self.opened - 1, 0), "plays_lost": self.lost, "failures": self.failed}
        numbers |= {"plays": self.open.total()}
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
            heard = await self.contact.ask(self.actor.report.remote)
            if heard.state is not PartState.UP or (self.up and heard.answer.facts["world"]):
                return heard  # else another process answered, in which the world is not open yet
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
        from opening the world, and `InfrastructureError` where none is up for `OPEN_TIMEOUT_S`."""
        deadline = None
        while True:
            if free := [w for w in self.all if w.up and w.open[world] < room and not 0 < self.most <= w.placed]:
                chosen = min(free, key=lambda worker: (worker.placed, worker.open.total()))
                chosen.placed += 1
                chosen.take_on(world)
                return Place(chosen, chosen.life, world)
            failed = [worker.failure for worker in self.all if isinstance(worker.failure, ConfigError)]
            up = any(worker.up for worker in self.all)
            if failed and not up:
                raise failed[0]
            deadline = None if up else deadline or asyncio.get_running_loop().time() + OPEN_TIMEOUT_S
            try:
                async with asyncio.timeout_at(deadline):
                    await self._change()
            except TimeoutError:
                raise InfrastructureError(
                    f"none of {self.count} environment workers was up for {OPEN_TIMEOUT_S:.0f} s: see whether their "
                    "nodes are up (`ray status`)"
                ) from None

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
        if isinstance(answer.error, LostPlayError):  # a process answered that was started in the place of its own
            self._lose(place.worker, place.life)
        place.worker.failed += isinstance(answer.error, Exception) and not isinstance(answer.error, POLICYS)
        return answer

    def ask_now(self, worker: Worker | None, method: str, *arguments: Any) -> Any:
        """Returns what a worker, or the first that answers of those that are up, says, and waits for it where it is
        called."""
        asked = [one for one in self.all if one.up] if worker is None else [worker]
        if not asked:
            raise LostPlayError("no environment worker is up: the world is not open, or all their processes have ended")
        for one in asked:
            try:
                raw: Any = ray.get(getattr(one.actor, method).remote(*arguments), timeout=ASK_TIMEOUT_S)
            except RayError:
                continue
            answer: Answer = pickle.loads(raw)
            if not isinstance(answer.error, LostPlayError):
                return answer.get()
        raise LostPlayError(LOST)

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
