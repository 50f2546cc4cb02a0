"""Finds the processes of Ray's actors, and kills them at random moments."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path


def actors_of(kind: str) -> list[int]:
    """Returns the processes of actors of a class, which Ray names after it."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (entry / "cmdline").read_bytes().startswith(f"ray::{kind}".encode()) and _is_ours(int(entry.name)):
                found.append(int(entry.name))
    return sorted(found)


def kill_newest(kind: str) -> None:
    """Kills the actor of a class that was started last, if there is any."""
    if found := actors_of(kind):
        os.kill(max(found, key=_started), signal.SIGKILL)


def _started(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])


def _is_ours(process: int) -> bool:
    """Returns whether a process descends from this one, and not from another test's."""
    while process > 1:
        if process == os.getpid():
            return True
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return False


@contextlib.asynccontextmanager
async def killing(kinds: list[str], seed: int, times: int) -> AsyncIterator[list[str]]:
    """Kills a process of one of the kinds at random moments; gives the kinds of those that it killed."""
    killed: list[str] = []

    async def kill() -> None:
        draw = random.Random(seed)
        while len(killed) < times:
            await asyncio.sleep(draw.uniform(0.05, 0.8))
            kind = draw.choice(kinds)
            if found := actors_of(kind):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(draw.choice(found), signal.SIGKILL)
                    killed.append(kind)

    killer = asyncio.create_task(kill())
    try:
        yield killed
    finally:
        killer.cancel()
