"""Finds the tasks and threads that a call leaves running."""

from __future__ import annotations

import asyncio
import threading
from typing import Any


def running() -> set[Any]:
    """Returns the tasks of this event loop and the threads of this process."""
    return {*asyncio.all_tasks(), *threading.enumerate()}


async def left_running(before: set[Any]) -> list[str]:
    """Returns the names of tasks and threads that started since and do not end within a second, and cancels the tasks;
    threads of asyncio's shared pool are left out."""
    started: list[Any] = []
    for _ in range(50):
        started = [r for r in running() - before if not _name(r).startswith("asyncio_")]
        if not started:
            return []
        await asyncio.sleep(0.02)
    for one in started:
        if isinstance(one, asyncio.Task):
            one.cancel()
    return [f"the {'task' if isinstance(r, asyncio.Task) else 'thread'} {_name(r)}" for r in started]


def _name(one: Any) -> str:
    if isinstance(one, asyncio.Task):
        return getattr(one.get_coro(), "__qualname__", one.get_name())
    return one.name
