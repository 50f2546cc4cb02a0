"""Acts that are given up before a thread has taken them up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


async def given_up_while_it_queues(act: Awaitable[Any]) -> None:
    """Begins an act while every thread is busy, cancels it there, and waits until whatever it still has done is over.

    From here on, the loop has one thread.
    """
    loop, go = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, go.wait)
    doing = asyncio.ensure_future(act)
    for _ in range(3):
        await asyncio.sleep(0)
    queued = not doing.done()
    doing.cancel()
    await asyncio.wait({doing})
    go.set()  # before any assertion: a thread that waits forever would keep the whole test process from ending
    await busy
    assert queued
    assert doing.cancelled()
    for _ in range(3):  # what is done in one thread may be followed by more
        await asyncio.sleep(0)
        await loop.run_in_executor(None, int)
