"""The sessions of a server that goes on for long: what is remembered of them is bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from sojourn.gateway.session import Session
from sojourn.gateway.sessions import Sessions
from sojourn.serving.watched import tell_session

MOST_TURNS = 1_000  # of one session, in which each request looks for what it goes on from
MOST_MADE = 100_000  # keys of which it is known how often a session was made


@dataclass
class BoundedSessions(Sessions):
    """Keeps sessions as `Sessions` does. One with more than `session_turns` turns begins anew, and of all together no
    more than `turns` are kept, without those of the sessions that were used least recently.

    Whoever goes on with what was forgotten gets a reply all the same: its whole conversation is read anew, and where
    the tokens are the same, they are still found in the engine's cache. `generation` says how many sessions of a key
    there were before, so that a new one does not repeat their samples.
    """

    turns: int = 100_000
    session_turns: int = MOST_TURNS
    _held: dict[str, int] = field(default_factory=dict[str, int])  # turns of each session when it was last used
    _total: int = 0
    _made: OrderedDict[str, int] = field(default_factory=OrderedDict[str, int])  # sessions of each key

    @property
    def count(self) -> int:
        return len(self._open)

    def get(self, key: str) -> Session:
        tell_session(key)
        if (known := self._open.get(key)) is not None and len(known.turns) > self.session_turns:
            self._forget(key)
        if key not in self:
            self._made[key] = self._made.pop(key, 0) + 1
            while len(self._made) > MOST_MADE:
                self._made.popitem(last=False)
        session = super().get(key)
        self._hold(session)
        if len(self._held) > len(self._open):  # as the base class forgot one
            for gone in [one for one in self._held if one not in self._open]:
                self._total -= self._held.pop(gone)
        while self._total > self.turns and len(self._open) > 1:
            self._forget(next(iter(self._open)))
        return session

    def generation(self, key: str) -> int:
        """Returns how many sessions of a key were made before its latest one."""
        return max(0, self._made.get(key, 0) - 1)

    def _hold(self, session: Session) -> None:
        count = len(session.turns)
        self._total += count - self._held.get(session.key, 0)
        self._held[session.key] = count

    def _forget(self, key: str) -> None:
        del self._open[key]
        self._total -= self._held.pop(key, 0)
