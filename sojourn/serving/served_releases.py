"""The weights that answer people: which release serves, which is tried, and when one is taken back."""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from sojourn.errors import SojournError
from sojourn.live.facts import SERVING, Release
from sojourn.live.gate import CANARY, FAILED, FREEZE, FROZEN, ROLLED_BACK, THAWED, Gate, serving
from sojourn.live.store import LiveStore
from sojourn.serving.opening import Served


@dataclass
class ServedReleases:
    """Opens the releases that the store offers, and says which of them answers a new session.

    `poll` looks for what changed. A release that nothing uses any more is closed. The release that is
    tried is compared by sessions that began since the trial did, the one that serves by those since it did.
    """

    gate: Gate
    store: LiveStore
    open: Callable[[Release], Served]
    opened: dict[int, Served] = field(default_factory=dict[int, Served])
    serving: int | None = None
    tried: int | None = None
    previous: int | None = None  # which served before, while the one that serves is watched
    tried_since: float = 0.0
    serving_since: float = 0.0
    _seen: set[int] = field(default_factory=set[int])  # that were opened, or could not be
    _frozen: bool = False

    def choose(self, key: str) -> int:
        """Returns the number of the release that answers a session; it follows from the session's key."""
        assert self.serving is not None, "`begin` comes first"
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        place, share = int.from_bytes(digest, "big") / 2**64, self.gate.canary_share
        if self.tried is not None:
            if place < share:
                return self.tried
            place = (place - share) / (1 - share)  # among the others
        return self.previous if self.previous is not None and place < share else self.serving

    async def begin(self) -> bool:
        """Opens the release that served last, else the first that was offered; returns whether there is one."""
        release, events = serving(self.store), self.store.events()
        if release is None:
            return False
        self._seen = {e.release for e in events if e.kind in (SERVING, ROLLED_BACK, FAILED) and e.release is not None}
        self._frozen = [e.kind for e in events if e.kind in (FROZEN, THAWED)][-1:] == [FROZEN]
        await self._open(release)
        self.serving = release.number
        if not any(event.kind == SERVING for event in events):
            self.store.tell(SERVING, release.number, "it is the first")
        return True

    async def poll(self, used: Collection[int] = ()) -> None:
        """Tries what is offered, decides on what is tried or watched, and closes what no session uses."""
        if self._is_frozen():
            return
        if self.tried is not None:
            self._decide(self.tried)
        if self.previous is not None:
            self._watch(self.previous)
        if self.tried is None:
            await self._try_newest()
        for number in self.opened.keys() - {self.serving, self.tried, self.previous, *used}:
            await self.opened.pop(number).engine.close()

    def _is_frozen(self) -> bool:
        """Returns whether nothing may change; when that begins and when it ends is written down."""
        frozen = (self.store.folder / FREEZE).exists()
        if frozen != self._frozen:
            reason = f"the file {FREEZE} is there" if frozen else f"the file {FREEZE} was removed"
            self.store.tell(FROZEN if frozen else THAWED, self.serving, reason)
            self._frozen = frozen
        return frozen

    async def _try_newest(self) -> None:
        """Begins to try the newest release that was not seen; those before it are left out."""
        new = [one for one in self.store.releases() if one.number not in self._seen]
        if not new:
            return
        self._seen |= {one.number for one in new}
        release = new[-1]
        if release.number == self.serving:
            return
        try:
            await self._open(release)
        except (SojournError, OSError, RuntimeError) as error:
            self.store.tell(FAILED, release.number, f"it cannot be opened: {error}")
            return
        if self.gate.canary_share > 0:
            self.tried, self.tried_since = release.number, time.time()
            self.store.tell(CANARY, release.number, f"it answers {self.gate.canary_share:.0%} of new sessions")
        else:
            self._serve(release.number, "nothing is tried first (canary_share = 0)")

    def _decide(self, tried: int) -> None:
        worse, said = self._worse(tried, self.serving, self.gate.canary_sessions, self.tried_since)
        if worse:
            self.tried = None
            self.store.tell(ROLLED_BACK, tried, said)
        elif len(self._scores(tried, self.gate.canary_sessions, self.tried_since)) >= self.gate.canary_sessions:
            self.tried = None
            self._serve(tried, said)

    def _watch(self, previous: int) -> None:
        worse, said = self._worse(self.serving, previous, self.gate.watch_sessions, self.serving_since)
        if worse:
            bad, self.serving, self.previous, self.serving_since = self.serving, previous, None, time.time()
            self.store.tell(ROLLED_BACK, bad, said)
            self.store.tell(SERVING, previous, f"release {bad} was rolled back")
        elif len(self._scores(self.serving, self.gate.watch_sessions, self.serving_since)) >= self.gate.watch_sessions:
            self.previous = None

    def _worse(self, new: int | None, old: int | None, count: int, since: float) -> tuple[bool, str]:
        """Returns whether a release is worse than another by the feedback of sessions of both that began at a time or
        later, and the numbers. Before there are `count` sessions, and half as many of the other, it is worse where
        that is sure: where the difference is larger than twice its standard error, too."""
        mine, theirs = (self._scores(number, count, since) for number in (new, old))
        if len(theirs) < 2 and old is not None:
            theirs = self.store.scores(old, count)
        if len(mine) < 2 or len(theirs) < 2:
            return False, f"{len(mine)} sessions with feedback, and {len(theirs)} of the other release"
        less = statistics.fmean(theirs) - statistics.fmean(mine)
        error = sum(statistics.variance(one) / len(one) for one in (mine, theirs)) ** 0.5
        said = (
            f"feedback {statistics.fmean(mine):+.3f} in {len(mine)} sessions, {statistics.fmean(theirs):+.3f} in "
            f"{len(theirs)} of the other release"
        )
        enough = (len(mine) >= count and 2 * len(theirs) >= count) or less > max(2 * error, 2 * self.gate.tolerance)
        return enough and less > self.gate.tolerance, said

    def _scores(self, release: int | None, count: int, since: float) -> list[float]:
        return [] if release is None else self.store.scores(release, count, since)

    def _serve(self, number: int, reason: str) -> None:
        self.previous = self.serving if self.gate.watch_sessions else None
        self.serving, self.serving_since = number, time.time()
        self.store.tell(SERVING, number, reason)

    async def _open(self, release: Release) -> None:
        if release.number not in self.opened:
            self.opened[release.number] = await asyncio.to_thread(self.open, release)

    async def close(self) -> None:
        for served in self.opened.values():
            await served.engine.close()
        self.opened.clear()
