"""Groups of what people, or programs, asked a service that learns: `sojourn live`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from sojourn.composite import with_bases
from sojourn.config.fields import Range
from sojourn.errors import ConfigError
from sojourn.live.facts import LiveSession, PendingRemoval
from sojourn.live.removal import EPISODE, carry_out
from sojourn.live.service_lock import ServiceLock
from sojourn.live.store import LiveStore
from sojourn.record.episodes.store import EpisodeStore
from sojourn.rewards.native import Native
from sojourn.rewards.next_state import NextState
from sojourn.sources.context import SourceContext, StageContext
from sojourn.terminal.clean import shell_word
from sojourn.types import Ending, Episode, Group, Task, Trajectory

log = logging.getLogger(__name__)
ENV = "live"  # of the tasks of sessions
UNSERVED_S = 5.0  # for which a step waits until it says that nobody serves: who begins to serve has its lock by then


@dataclass(frozen=True, kw_only=True)
class Live:
    """`width` sessions of a live service per step, each a group of its own, in the order in which they ended.

    A step waits until there are as many sessions that have ended, whose people agreed to training, and that no step
    took before; it looks every `poll_s` seconds. Of one person it takes `per_person` at most (0: any number), so that
    nobody's feedback outweighs the others'. A turn's reward is what its person said of it, in [-1, 1]. The samples are
    those of the weights that served, which are older than those that are trained. Sessions are left out, and counted,
    since whose beginning the weights that serve have changed more than `max_age` times (0: however often they have).
    `folder` holds the service's store; left empty, it is `live` in the run folder.

    What people take back is removed from the run's records before a step takes sessions, and while it waits for them; a
    part `replay` of the same stage that is named after this one replays none of it from then on.

    As each group has one episode, estimators that compare the episodes of a group learn nothing from it.
    """

    width: Annotated[int, Range(1)] = 16
    per_person: Annotated[int, Range(0)] = 4
    max_age: Annotated[int, Range(0)] = 0
    poll_s: Annotated[float, Range(above=0)] = 0.5
    folder: str = ""

    live = False
    origin = "live"
    size = 1

    def tasks(self, steps: int) -> int:
        return 0

    async def check(self, stage: StageContext) -> None:
        """Refuses to count what a person said of a turn twice: as its reward, which it is already, and as its feedback.

        What else does not fit is refused by what losses and estimators say of themselves."""
        rewards = list(with_bases([stage.reward]))
        twice = any(isinstance(one, Native) and one.scale for one in rewards)
        if twice and any(isinstance(one, NextState) for one in rewards):
            raise ConfigError(
                f"stage '{stage.name}': what people say of a turn is its reward, which native counts, and its "
                "feedback, which next_state counts: set scale = 0 of native, or leave next_state out"
            )

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> LiveGroups:
        folder = Path(self.folder) if self.folder else Path(context.episodes.folder) / "live"
        return LiveGroups(self, LiveStore(folder), context.episodes, stage)


@dataclass
class LiveGroups:
    """Takes sessions from the store."""

    config: Live
    store: LiveStore
    episodes: EpisodeStore
    stage: str
    _ages: list[int] = field(default_factory=list[int])
    _removed: int = 0
    _since: dict[PendingRemoval, int] = field(default_factory=dict[PendingRemoval, int])

    async def take(self, step: int) -> list[Group]:
        config, began, told = self.config, time.monotonic(), False
        while True:
            self._carry_out(step)
            found = self.store.take(self.stage, step, config.width, config.per_person, config.max_age)
            read = [(one, self._episode(one)) for one in found or ()]
            if kept := [(one, episode) for one, episode in read if episode.trajectories[0].turns]:
                break  # the others were taken back in this moment
            if not told and time.monotonic() - began >= UNSERVED_S:
                told = True
                self._tell_unserved(step)
            await asyncio.sleep(config.poll_s)
        self._ages += [self.store.age(one) for one, _ in kept]
        return [Group(place, _task(one), (episode,), origin=Live.origin) for place, (one, episode) in enumerate(kept)]

    def _tell_unserved(self, step: int) -> None:
        """Says what a step waits for, where no service runs that would bring it."""
        config, folder = self.config, self.store.folder
        if ServiceLock(folder).is_taken:
            return
        ready = self.store.ready(config.width, config.per_person, config.max_age)
        served = f"`sojourn live {shell_word(folder.parent)} --resume` serves this run to people, and trains it"
        other = "start the service to which it belongs, with `sojourn live`"
        log.warning(
            f"stage '{self.stage}': step {step} waits for {config.width} sessions that have ended and may be trained "
            f"on, of which {ready} are there, and no service runs that keeps any in {folder}: "
            + (other if config.folder else f"end this by Ctrl-C; {served}")
        )

    def _carry_out(self, step: int) -> None:
        """Removes what people took back. This step, or one before it, may replay it and be recorded later: so a removal
        is done when a later one is recorded."""
        pending = [one for one in self.store.removals() if one.stage == self.stage]
        self._since = {one: self._since.get(one, step) for one in pending}
        self._removed += len(carry_out(self.store, self.episodes, self._since))

    def metrics(self) -> Mapping[str, float]:
        """Returns the mean age of the sessions that were taken since the last call, in changes of the weights that
        serve; how many were removed from the records; and how many there are that are too old."""
        ages, self._ages = self._ages, []
        removed, self._removed = self._removed, 0
        counts = {
            "sessions_removed": float(removed),
            "sessions_too_old": float(self.store.too_old(self.config.max_age)),
        }
        return counts | ({"sessions_age": float(np.mean(ages))} if ages else {})

    def _episode(self, session: LiveSession) -> Episode:
        turns = self.store.turns(session.key)
        seconds = (session.ended or session.touched) - session.opened
        return Episode(
            f"{EPISODE}{session.key}", _task(session), (Trajectory("agent", turns, Ending.DONE),), None, seconds
        )

    async def close(self) -> None:
        self.store.close()


def _task(session: LiveSession) -> Task:
    data: Mapping[str, Any] = {"session": session.key, "release": session.release}
    return Task(ENV, data, 0, "live")
