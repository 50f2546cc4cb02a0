"""The open sessions of a gateway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sojourn.gateway.requests import RequestError
from sojourn.gateway.session import Session

MOST_SESSIONS = 10_000


@dataclass
class Sessions:
    """Keeps sessions by their keys. Where `new` is given, it makes a session for a key that is not known yet; the
    session that was used least recently is forgotten when there are more than `most`."""

    new: Callable[[str], Session] | None = None
    most: int = MOST_SESSIONS
    _open: dict[str, Session] = field(default_factory=dict[str, Session])

    def open(self, session: Session) -> None:
        self._open[session.key] = session

    def __contains__(self, key: str) -> bool:
        return key in self._open

    def close(self, key: str) -> None:
        self._open.pop(key, None)

    def get(self, key: str) -> Session:
        """Returns a session by its key; raises `RequestError` for one that is not open."""
        session = self._open.pop(key, None)
        if session is None:
            if self.new is None:
                raise RequestError(
                    "no session of this key is open: expected the base URL that the agent was given",
                    status=404, code="no_session",
                )  # fmt: skip
            session = self.new(key)
            while len(self._open) >= self.most:
                del self._open[next(iter(self._open))]
        self._open[key] = session  # now the latest
        return session
