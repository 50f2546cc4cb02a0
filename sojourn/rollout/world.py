"""What a run asks of a world as a whole: its parts, its seats, what its plays offer, and its shared resources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sojourn.config.lookup import nearest
from sojourn.errors import ConfigError, InfrastructureError, SojournError
from sojourn.event_loop import contained
from sojourn.protocols import Closes, EnvFamily, Forkable, HasExpert, HasSeats, HasStateKey, HasWorlds, Opens
from sojourn.rollout.limits import Limits, ask
from sojourn.timeline import Timeline
from sojourn.types import Task


@asynccontextmanager
async def opened(family: EnvFamily, limits: Limits | None = None) -> AsyncIterator[None]:
    """With the world's shared resources, where it has any; closed whatever happens, within the limits of a call."""
    ready, done = asyncio.Event(), asyncio.Event()
    holding = asyncio.create_task(contained(_hold(family, ready, done, limits or Limits())))
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({holding, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if ready.is_set():
            yield
    except asyncio.CancelledError:
        if not ready.is_set():
            holding.cancel()
        raise
    finally:
        waiting.cancel()
        done.set()
        await holding


async def _hold(family: EnvFamily, ready: asyncio.Event, done: asyncio.Event, limits: Limits) -> None:
    """Opens and closes in one task, as scopes of cancellation that a world may hold open in between want it."""
    try:
        if isinstance(family, Opens):
            await family.open()
        ready.set()
        await done.wait()
    finally:
        if isinstance(family, Closes):
            await ask(family.close, limits, Timeline())


def world_of(family: EnvFamily, task: Task) -> EnvFamily:
    """The world that a task is of: one of several, where a family is made of such."""
    return family.world_of(task) if isinstance(family, HasWorlds) else family


def worlds_of(family: EnvFamily) -> tuple[EnvFamily, ...]:
    """The worlds that a family is made of: itself, mostly."""
    return family.worlds if isinstance(family, HasWorlds) else (family,)


def seats_of(family: EnvFamily, task: Task) -> tuple[str, ...]:
    """The names of those who play a task: one agent, where its world does not say."""
    return seats_in(world_of(family, task))


def seats_in(world: EnvFamily) -> tuple[str, ...]:
    """Returns the names of those who play in one world: one agent, where it does not say."""
    return tuple(world.seats) if isinstance(world, HasSeats) else ("agent",)


ABILITIES: dict[str, type] = {"expert": HasExpert, "fork": Forkable, "state_key": HasStateKey}


async def offers(family: EnvFamily, name: str, limits: Limits) -> bool:
    """Returns whether the plays of a world offer one of `ABILITIES`.

    Raises `InfrastructureError` where there cannot even be one play.
    """
    if name not in ABILITIES:
        raise ConfigError(f"env_needs: '{name}' is nothing that plays may offer: {nearest(name, ABILITIES)}")
    offered = True
    for world in worlds_of(family):
        try:
            env = world.make(world.tasks("train")[0])
            await contained(ask(env.close, limits, Timeline()))
        except SojournError:
            raise
        except Exception as error:  # the world's own, which no user of it can mend by looking at where we called it
            raise InfrastructureError(f"a play of the world cannot be made: {type(error).__name__}: {error}") from error
        offered = offered and isinstance(env, ABILITIES[name])
    return offered
