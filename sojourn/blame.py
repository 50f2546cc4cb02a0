"""Decides whether an action or the infrastructure is the cause, when an environment fails while it performs the action.

A failure of the infrastructure is tried again and never trained on. An agent that could cause such failures would
escape bad rewards. So the same actions are performed again in a new episode of the task. Where that fails at the same
action, the action is the cause, and the episode ends there with the worst reward. Where it fails earlier or not at all,
the failure counts as one of the infrastructure. It also counts as that where at least as many episodes of this world
were broken by an action as ended normally, since a service that is down fails again, too. A world that can tell that an
action broke it reports this itself; the replay is for worlds that cannot.

Where the process of a play ended, all plays of that process fail at once, mostly for a reason that is not theirs. Then
the actions are performed again in a play that has its process to itself, and the last one is the cause only if that
process ends, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sojourn.abilities import ClosableSeat
from sojourn.errors import ActionError, ConfigError, LostPlayError, WorldError
from sojourn.event_loop import cancelled
from sojourn.protocols import Env
from sojourn.types import Message

EnvCall = Callable[..., Awaitable[Any]]  # is given a method of a play and its arguments, within the limits
LOWEST = -1.0  # the reward of an episode that its agent broke, where the world does not define one


class Action(NamedTuple):
    agent: str
    message: Message


@dataclass
class EpisodeCounts:
    """Counts the episodes of an environment that ended without a failure, and those that an action broke."""

    completed: int = 0
    broken: int = 0


@dataclass
class Blame:
    """Decides for one episode. `make` makes its environment anew, `make_alone` so that no other play is in its process,
    and `call` calls its methods; `lowest` is the reward where its agent broke it."""

    make: Callable[[], Env]
    call: EnvCall
    lowest: float
    counts: EpisodeCounts
    make_alone: Callable[[], Env] | None = None
    closed: bool = False  # whether the episode's environment was closed, to make room for the other play
    failure: BaseException | None = None  # that the last action is to blame for

    async def is_cause(self, env: Env, performed: Sequence[Action], last: Action, error: BaseException) -> bool:
        """Returns whether the last action broke the environment with this error. The environment is closed and replayed
        to find out."""
        if self.counts.broken >= self.counts.completed:
            return False
        self.closed = True
        await close(env, self.call)
        repeats = await self._repeats(performed, last, isinstance(error, LostPlayError))
        self.counts.broken += repeats
        return repeats

    async def _repeats(self, performed: Sequence[Action], last: Action, lost: bool) -> bool:
        failed_at_last = False
        try:
            replay = self.make_alone() if lost and self.make_alone is not None else self.make()
            try:
                await self.call(replay.start)
                for action in performed:
                    await self.call(replay.step, *action)
                failed_at_last = True
                await self.call(replay.step, *last)
                failed_at_last = False
            except ActionError:  # the replay refused an action that the first play accepted
                failed_at_last = False
            finally:
                await close(replay, self.call)
        except (ConfigError, WorldError):
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and cancelled():
                raise
            return failed_at_last and lost == isinstance(error, LostPlayError)  # else only its place matters
        return False


async def close(env: Env, call: EnvCall) -> BaseException | None:
    """Closes a play, and returns the error of closing it, if there is one."""
    try:
        await call(env.close)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and cancelled():
            raise
        return error
    return None


async def close_seats(seats: Iterable[object]) -> None:
    """Closes those seats of a play that hold something."""
    for seat in seats:
        if isinstance(seat, ClosableSeat):
            await seat.close()
