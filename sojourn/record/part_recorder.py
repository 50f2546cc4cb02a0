"""Asks the parts of a run what they do, beside the run, and records it. The run never waits for their answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sojourn.abilities import ANSWER_S, PartLoad, PartState, ReportsParts
from sojourn.errors import InfrastructureError, RecordError, cause
from sojourn.record.parts import PartsFile, Reading, part_json

EVERY_S = 30.0  # between two readings in a long step
TICK_S = 0.25  # between two looks at how late the event loop is
GIVEN_UP_S = 2 * ANSWER_S  # after which a reporter that does not return is given up


@dataclass
class LoopLag:
    """Measures how late the event loop runs what is due, by a timer; `tick` is called each time, too."""

    tick: Callable[[], None] = lambda: None
    _sum_s: float = 0.0
    _most_s: float = 0.0
    _count: int = 0
    _timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._measure)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def take(self) -> tuple[float, float]:
        """Returns the mean and the longest delay in seconds since the last call."""
        found = self._sum_s / max(self._count, 1), self._most_s
        self._sum_s, self._most_s, self._count = 0.0, 0.0, 0
        return found

    def _measure(self) -> None:
        assert self._timer is not None
        late = max(asyncio.get_running_loop().time() - self._timer.when(), 0.0)
        self._sum_s, self._most_s, self._count = self._sum_s + late, max(self._most_s, late), self._count + 1
        self.start()
        self.tick()


@dataclass(eq=False)
class PartRecorder:
    """A sink that records, after each step, what the parts of a run do, and in a long step every `EVERY_S` seconds.

    Each reading is taken by a task of its own: while one waits for a part, the next one waits for it, and steps that
    end meanwhile share it. `tell` is given a sentence for each part that is no longer up, and once it is again.
    """

    file: PartsFile
    reporters: Sequence[ReportsParts]
    lag: LoopLag = field(default_factory=LoopLag)
    tell: Callable[[str], None] = lambda sentence: None
    step: int = -1  # the last one that has ended
    stage: str = ""
    _due: bool = False
    _task: asyncio.Task[None] | None = None
    _asking: dict[int, asyncio.Future[Sequence[PartLoad]]] = field(
        default_factory=dict[int, "asyncio.Future[Sequence[PartLoad]]"]
    )
    _states: dict[str, PartState] = field(default_factory=dict[str, PartState])
    _read: float = field(default_factory=time.monotonic)

    async def __aenter__(self) -> PartRecorder:
        self.lag.tick = self._tick
        self.lag.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Waits for the reading that is being taken; after an error, takes a last one, which shows what is down."""
        self.lag.stop()
        if isinstance(error, Exception):
            self._begin()
        try:
            if self._task is not None and (error is None or isinstance(error, Exception)):
                await asyncio.wait({self._task}, timeout=2 * GIVEN_UP_S)
        finally:
            for task in (self._task, *self._asking.values()):
                if task is not None:
                    task.cancel()
            self.file.close()

    def write(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        """Begins the reading of a step."""
        self.step, self.stage = step, stage
        self._begin()

    def close(self) -> None:
        """Does nothing: the end of the context does."""

    def _tick(self) -> None:
        if time.monotonic() - self._read >= EVERY_S:
            self._begin()

    def _begin(self) -> None:
        self._due = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._record(), name="parts")

    async def _record(self) -> None:
        while self._due:
            self._due = False
            began, self._read, step, stage = self._read, time.monotonic(), self.step, self.stage
            found = await asyncio.gather(*map(self._answer, self.reporters))
            parts = tuple(part for some in found for part in some)
            try:
                self.file.write(Reading(step, stage, time.time(), self._read - began, parts))
            except RecordError as error:
                self.tell(f"what the parts of the run do is not recorded: {error}")
                return
            self._tell(parts)

    async def _answer(self, reporter: ReportsParts) -> Sequence[PartLoad]:
        """Returns what a reporter says of its parts. One that fails, or does not return, is itself a part that is
        silent."""
        asking = self._asking.get(id(reporter))
        if asking is None:  # else it has not returned since it was asked before
            asking = self._asking[id(reporter)] = asyncio.ensure_future(_checked(reporter))
        done, _ = await asyncio.wait({asking}, timeout=GIVEN_UP_S)
        silent = PartLoad(name=type(reporter).__name__, kind="part", state=PartState.SILENT, seen_s=None)
        if not done:
            return [replace(silent, note=f"its part_loads has not returned within {GIVEN_UP_S:g} s")]
        del self._asking[id(reporter)]
        try:
            return asking.result()
        except Exception as error:  # whatever a reporter raises: the run goes on
            return [replace(silent, note=cause(error))]

    def _tell(self, parts: Sequence[PartLoad]) -> None:
        """Tells of parts whose state is another than it was: that they are gone, or back."""
        for part in parts:
            before = self._states.get(part.name, PartState.UP)
            gone, was_gone = (state in (PartState.DOWN, PartState.SILENT) for state in (part.state, before))
            if part.state is PartState.LOADING:
                continue
            self._states[part.name] = part.state
            if gone and part.state is not before:
                seen = "" if part.seen_s is None else f", last seen {part.seen_s:.0f} s ago"
                why = f" ({part.note})" if part.note else ""
                self.tell(f"{part.name} is {part.state.value}{why}{seen}")
            elif was_gone and not gone:
                self.tell(f"{part.name} is up again")


async def _checked(reporter: ReportsParts) -> Sequence[PartLoad]:
    """Returns what a reporter says. Raises where that cannot be recorded."""
    try:
        found = list(await reporter.part_loads())
    except SystemExit as error:  # which would end the event loop
        raise InfrastructureError(f"part_loads exits ({error})") from None
    for part in found:
        part_json(part)
    return found
