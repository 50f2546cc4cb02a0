"""Decides whether an action or the infrastructure is the cause, when an environment fails while it performs the action.

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

from sojourn.errors import ActionError, ConfigError, WorldError
from sojourn.protocols import Env
from sojourn.rollout.limits import Limits, ask, cancelled
from sojourn.timeline import Timeline
from sojourn.types import Message

LOWEST = -1.0  # what a lost play pays where its world does not say


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
    """Decides for one episode. `make` gives another play of its task; `lowest` is the reward of a lost episode."""

    make: Callable[[], Env]
    lowest: float
    counts: EpisodeCounts
    closed: bool = False  # whether the episode's environment was closed, to make room for the other play

    async def falls_on(
        self, env: Env, taken: Sequence[Action], last: Action, limits: Limits, timeline: Timeline
    ) -> bool:
        """Returns whether the last action broke the play. To try it, the play is closed, and played again."""
        if self.counts.broken >= self.counts.completed:
            return False
        self.closed = True
        await close(env, limits, timeline)
        repeats = await self._repeats(taken, last, limits, timeline)
        self.counts.broken += repeats
        return repeats

    async def _repeats(self, taken: Sequence[Action], last: Action, limits: Limits, timeline: Timeline) -> bool:
        reached = False
        try:
            replay = self.make()
            try:
                await ask(replay.start, limits, timeline)
                for action in taken:
                    await ask(replay.step, limits, timeline, *action)
                reached = True
                await ask(replay.step, limits, timeline, *last)
                reached = False
            except ActionError:  # the replay refused an action that the first play accepted
                reached = False
            finally:
                await close(replay, limits, timeline)
        except (ConfigError, WorldError):
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # only the place of the failure matters
            if isinstance(error, asyncio.CancelledError) and cancelled():
                raise
            return reached
        return False


async def close(env: Env, limits: Limits, timeline: Timeline) -> BaseException | None:
    """Closes a play, and returns the error of closing it, if there is one."""
    try:
        await ask(env.close, limits, timeline)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and cancelled():
            raise
        return error
    return None
