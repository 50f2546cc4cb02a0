"""The weights that answer people: which release serves, which is tried, and when one is taken back."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from sojourn.errors import cause
from sojourn.live.facts import SERVING, Event, Release
from sojourn.live.gate import CANARY, FAILED, FREEZE, FROZEN, KEPT, ROLLED_BACK, THAWED, Gate, serving
from sojourn.live.store import LiveStore
from sojourn.serving.comparison import TOO_FEW, Compared, Scores, Verdict, compare
from sojourn.serving.opening import Served


@dataclass
class ServedReleases:
    """Opens the releases that the store offers, and says which of them answers a new session.

    `poll` looks for what changed; each change is written down before it is made. A release that nothing uses any more
    is closed. The release that is tried is compared by sessions that began since the trial did, the one that serves by
    those since it did.
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
        self._seen = self._seen_before(events)
        self._frozen = [e.kind for e in events if e.kind in (FROZEN, THAWED)][-1:] == [FROZEN]
        await self._open(release)
        self.serving = release.number
        if not any(event.kind == SERVING for event in events):
            self.store.tell(SERVING, release.number, "it is the first")
        await self._go_on_watching(events)
        return True

    def _seen_before(self, events: Sequence[Event]) -> set[int]:
        """Returns the releases that are tried no more: those that were decided on, and those before the newest one that
        was tried, which were left out."""
        decided = {e.release for e in events if e.kind in (SERVING, ROLLED_BACK, FAILED) and e.release is not None}
        newest = max({*decided, *(e.release for e in events if e.kind == CANARY and e.release is not None)}, default=0)
        return decided | {one.number for one in self.store.releases() if one.number < newest}

    async def _go_on_watching(self, events: Sequence[Event]) -> None:
        """Watches the release that serves further, where a service that ended had not finished that."""
        changes = [event for event in events if event.kind == SERVING]
        if len(changes) < 2 or not self.gate.watch_sessions:
            return
        before, now = changes[-2:]
        done = [e.release for e in events if e.kind == KEPT and e.at >= now.at]
        rolled_back = {e.release for e in events if e.kind == ROLLED_BACK}
        release = next((one for one in self.store.releases() if one.number == before.release), None)
        if release is None or now.release in done or {before.release, now.release} & rolled_back:
            return
        try:
            await self._open(release)
        except Exception as error:  # whatever damaged weights raise, the service goes on
            self.store.tell(KEPT, now.release, f"{TOO_FEW}: release {release.number} cannot be opened: {cause(error)}")
        else:
            self.previous, self.serving_since = release.number, now.at

    async def poll(self, used: Collection[int] = ()) -> None:
        """Tries what is offered, decides on what is tried or watched, and closes what no session uses."""
        if self._is_frozen():
            return
        if self.previous is not None:
            self._watch(self.previous)
        if self.tried is not None:
            self._decide(self.tried)
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
        if not new or (self.gate.canary_share == 0 and self._waits):
            return
        release = new[-1]
        if release.number != self.serving:
            await self._try(release)
        self._seen |= {one.number for one in new}

    async def _try(self, release: Release) -> None:
        try:
            await self._open(release)
        except Exception as error:  # whatever damaged weights raise, the service goes on
            self.store.tell(FAILED, release.number, f"it cannot be opened: {cause(error)}")
            return
        if self.gate.canary_share > 0:
            self.store.tell(CANARY, release.number, f"it answers {self.gate.canary_share:.0%} of new sessions")
            self.tried, self.tried_since = release.number, time.time()
        else:
            self._serve(release.number, "nothing is tried first (canary_share = 0)")

    def _decide(self, tried: int) -> None:
        """Ends a trial where that can be decided, and, unless releases may overlap, once what serves was watched."""
        found = self._compare(tried, self.serving, self.gate.canary_sessions, self.tried_since)
        if found.verdict is Verdict.WAIT or (found.verdict is not Verdict.WORSE and self._waits):
            return
        if found.verdict is Verdict.WORSE:
            self.store.tell(ROLLED_BACK, tried, found.reason)
        else:
            self._serve(tried, found.reason)
        self.tried = None

    def _watch(self, previous: int) -> None:
        found = self._compare(self.serving, previous, self.gate.watch_sessions, self.serving_since)
        if found.verdict is Verdict.WAIT:
            return
        if found.verdict is Verdict.WORSE:
            now, bad = time.time(), self.serving
            self.store.add_events(
                Event(now, ROLLED_BACK, bad, found.reason),
                Event(now, SERVING, previous, f"release {bad} was rolled back"),
            )
            self.serving, self.serving_since = previous, now
        else:
            self.store.tell(KEPT, self.serving, found.reason)
        self.previous = None

    def _compare(self, new: int | None, other: int | None, count: int, since: float) -> Compared:
        """Compares two releases by the feedback of sessions that began at a time or later."""
        mine, theirs = ([] if one is None else self.store.scores(one, since=since) for one in (new, other))
        if len(theirs) < 2 and other is not None:
            return compare(self.gate, count, Scores(mine, self.store.scores(other, count), earlier=True))
        return compare(self.gate, count, Scores(mine, theirs))

    @property
    def _waits(self) -> bool:
        """Returns whether nothing new may serve yet, as what serves is watched."""
        return self.previous is not None and not self.gate.overlap

    def _serve(self, number: int, reason: str) -> None:
        now, events = time.time(), list[Event]()
        if self.previous is not None:
            events.append(Event(now, KEPT, self.serving, f"{TOO_FEW}: release {number} serves in its place"))
        self.store.add_events(*events, Event(now, SERVING, number, reason))
        self.previous = self.serving if self.gate.watch_sessions else None
        self.serving, self.serving_since = number, now

    async def _open(self, release: Release) -> None:
        if release.number not in self.opened:
            self.opened[release.number] = await asyncio.to_thread(self.open, release)

    async def close(self) -> None:
        for served in self.opened.values():
            await served.engine.close()
        self.opened.clear()
