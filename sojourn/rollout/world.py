"""Opens a family of environments, and finds the world and the seats of a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sojourn.abilities import Closes, HasSeats, HasWorlds, Opens
from sojourn.event_loop import contained
from sojourn.protocols import EnvFamily
from sojourn.rollout.limits import Limits, call_env
from sojourn.timeline import Timeline
from sojourn.types import Task


@asynccontextmanager
async def open_world(family: EnvFamily, limits: Limits | None = None) -> AsyncGenerator[None, None]:
    """Opens the resources that the plays of a family share, and closes them whatever happens."""
    ready, done = asyncio.Event(), asyncio.Event()
    holder = asyncio.create_task(contained(_hold(family, ready, done, limits or Limits())))
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({holder, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if ready.is_set():
            yield
    except asyncio.CancelledError:
        if not ready.is_set():
            holder.cancel()
        raise
    finally:
        waiting.cancel()
        done.set()
        await holder


async def _hold(family: EnvFamily, ready: asyncio.Event, done: asyncio.Event, limits: Limits) -> None:
    """Opens and closes the family in the same asyncio task, which the cancel scopes of anyio require."""
    try:
        if isinstance(family, Opens):
            await family.open()
        ready.set()
        await done.wait()
    finally:
        if isinstance(family, Closes):
            await call_env(family.close, limits, Timeline())


def world_of(family: EnvFamily, task: Task) -> EnvFamily:
    """Returns the family that a task belongs to, where a family is made of several."""
    return family.world_of(task) if isinstance(family, HasWorlds) else family


def worlds_of(family: EnvFamily) -> tuple[EnvFamily, ...]:
    """Returns the families that a family is made of: itself, unless it combines several."""
    return family.worlds if isinstance(family, HasWorlds) else (family,)


def seats_of(family: EnvFamily, task: Task) -> tuple[str, ...]:
    """Returns the names of the seats of a task; one agent where its environment does not say."""
    return seats_of_world(world_of(family, task))


def seats_of_world(world: EnvFamily) -> tuple[str, ...]:
    """Returns the names of the seats of an environment; one agent where it does not say."""
    return tuple(world.seats) if isinstance(world, HasSeats) else ("agent",)
