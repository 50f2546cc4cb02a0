"""Decides whose failure it is when a world breaks, or stalls, while it performs an agent's action.

A failure of the infrastructure is tried again and never trained on. An agent that could cause one would escape its
loss, so the cause is looked for: the same is said again in a new play of the task. Where that play starts, takes all
actions before, and then fails at the same action, the action is the cause, however it did it, and the play ends there,
lost. Where it fails elsewhere or not at all, and where fewer plays of the world have come to an end of their own than
were lost in this way (a service that is down fails again, too), the failure stays the infrastructure's. A world that
knows that an action broke it does better to say so itself; this is for those that cannot know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sojourn.errors import ActionError
from sojourn.protocols import Env
from sojourn.rollout.limits import Limits, ask, cancelled
from sojourn.timeline import Timeline
from sojourn.types import Message

LOWEST = -1.0  # what a lost play pays where its world does not say


class Said(NamedTuple):
    agent: str
    message: Message


@dataclass
class Ends:
    """Counts of a world's plays: those that ended by themselves, and those that an action broke."""

    sound: int = 0
    broken: int = 0


@dataclass
class Blame:
    """Finds out for one play: `make` gives another play of its task, and `lowest` is what a play pays that is lost."""

    make: Callable[[], Env]
    lowest: float
    ends: Ends
    closed: bool = False  # its play, to make room for the other

    async def falls_on(self, env: Env, taken: Sequence[Said], last: Said, limits: Limits, timeline: Timeline) -> bool:
        """Returns whether the last action is what broke a play, which is closed first where that has to be tried."""
        if self.ends.broken >= self.ends.sound:
            return False
        self.closed = True
        await _given_up(env, limits, timeline)
        repeats = await self._repeats(taken, last, limits, timeline)
        self.ends.broken += repeats
        return repeats

    async def _repeats(self, taken: Sequence[Said], last: Said, limits: Limits, timeline: Timeline) -> bool:
        reached = False
        try:
            again = self.make()
            try:
                await ask(again.start, limits, timeline)
                for said in taken:
                    await ask(again.step, limits, timeline, *said)
                reached = True
                await ask(again.step, limits, timeline, *last)
                reached = False
            except ActionError:  # now it is refused, or was before what is accepted here
                reached = False
            finally:
                await _given_up(again, limits, timeline)
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # whatever it is: where does it happen?
            if isinstance(error, asyncio.CancelledError) and cancelled():
                raise
            return reached
        return False


async def _given_up(env: Env, limits: Limits, timeline: Timeline) -> None:
    """Closes a broken play as well as that goes."""
    try:
        await ask(env.close, limits, timeline)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and cancelled():
            raise
