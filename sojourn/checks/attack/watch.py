"""Watches this process while it is attacked: how long its event loop is blocked, and how far its memory grows."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from sojourn.gauge import resident_bytes

PAUSE_S = 0.02


class Watch:
    """Measures, from `start` to `stop`, the longest time (seconds) for which the event loop was blocked, and the
    largest resident memory (bytes; 0 where there is no /proc)."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.peak_bytes = resident_bytes()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> Watch:
        self._task = asyncio.ensure_future(self._measure())
        return self

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def reset(self) -> None:
        self.longest_s, self.peak_bytes = 0.0, resident_bytes()

    async def _measure(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(PAUSE_S)
            self.longest_s = max(self.longest_s, time.monotonic() - began - PAUSE_S)
            self.peak_bytes = max(self.peak_bytes, resident_bytes())
