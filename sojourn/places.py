"""The places that a world has for plays at once, and which of the waiting plays gets one that becomes free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sojourn.abilities import HasNextTask, capacity
from sojourn.errors import ConfigError
from sojourn.gauge import Gauge
from sojourn.types import Task

PASSED_OVER = 64  # times at most, for the play that has waited longest


class PlayLimit(asyncio.Semaphore):
    """Lets so many plays go on at once; `gauge` follows how many do."""

    def __init__(self, plays: int) -> None:
        super().__init__(plays)
        self.gauge = Gauge()

    async def acquire(self) -> Literal[True]:
        await super().acquire()
        self.gauge.add(1)
        return True

    def release(self) -> None:
        self.gauge.add(-1)
        super().release()


class Waiting(NamedTuple):
    task: Task
    turn: asyncio.Future[None]


@dataclass
class Places:
    """`free` places. The play that has waited longest gets the next one, or the one that `next_task` chooses."""

    free: int
    next_task: Callable[[Sequence[Task]], int] | None = None
    _waiting: list[Waiting] = field(default_factory=list[Waiting])
    _passed_over: int = 0

    @classmethod
    def of(cls, world: object, default: int, copies: int = 0) -> Places:
        """Returns the places of a world, `default` of them where it does not limit them. A play of which `copies` are
        open takes as many places more."""
        free = capacity(world, default * (1 + copies)) // (1 + copies)
        if not free:
            raise ConfigError(
                f"the world holds {capacity(world, 0)} plays at once, but the agent opens {copies} copies of each: "
                f"expected agent.copies of at most {capacity(world, 0) - 1}"
            )
        return cls(free, world.next_task if isinstance(world, HasNextTask) else None)

    @asynccontextmanager
    async def taken(self, task: Task) -> AsyncIterator[None]:
        """Waits for a place for a play of the task, and gives it back at the end."""
        if self.free:
            self.free -= 1
        else:
            await self._wait(Waiting(task, asyncio.get_running_loop().create_future()))
        try:
            yield
        finally:
            self._give_back()

    async def _wait(self, play: Waiting) -> None:
        self._waiting.append(play)
        try:
            await play.turn
        except asyncio.CancelledError:
            if play in self._waiting:
                self._waiting.remove(play)
            else:  # it got the place as it was cancelled
                self._give_back()
            raise

    def _give_back(self) -> None:
        if not self._waiting:
            self.free += 1
            return
        chosen = 0
        if self.next_task is not None and self._passed_over < PASSED_OVER:
            chosen = self.next_task([play.task for play in self._waiting])
            if not 0 <= chosen < len(self._waiting):
                raise ConfigError(
                    f"the world's next_task returned {chosen!r} for {len(self._waiting)} waiting plays: expected a "
                    "number of their list, 0 for the first"
                )
        self._passed_over = self._passed_over + 1 if chosen else 0
        self._waiting.pop(chosen).turn.set_result(None)
