"""An event loop of asyncio whose clock jumps to the next timer when nothing else is left to do.

What sleeps for hours ends in milliseconds, and in the same order every time, since nothing waits for the machine. Only
timers wake anything here: threads, processes and sockets belong to real time.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` is virtual and begins at 0. `longest_turn_s` is the longest real time between two looks at the clock, in
    which the code that runs here let nothing else run."""

    def __init__(self) -> None:
        self._now = 0.0
        self.longest_turn_s = 0.0
        self.failure: BaseException | None = None  # of a callback that nobody awaits, which asyncio would only log
        super().__init__(_JumpingSelector(self))
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._now

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failure = self.failure or context.get("exception") or RuntimeError(context["message"])

    def spend(self, seconds: float) -> None:
        """Lets so much virtual time pass in which nothing else runs, as while the driver computes."""
        self._now += seconds


class _JumpingSelector(selectors.SelectSelector):
    """Lets the clock of its loop jump instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop, self._since = loop, time.perf_counter()

    def select(self, timeout: float | None = None) -> list[Any]:
        self._loop.longest_turn_s = max(self._loop.longest_turn_s, time.perf_counter() - self._since)
        events = super().select(0)
        if not events and timeout is None:
            raise RuntimeError("everything waits and no timer is set: what is awaited here never ends")
        if not events and timeout:
            self._loop.spend(timeout)
        self._since = time.perf_counter()
        return events


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in virtual time, and raises what any callback raised."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(main)
    if loop.failure is not None:
        raise loop.failure
    return result
