"""One HTTP request for a reply: it is sampled to its end whoever goes away meanwhile, and sampled once."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from sojourn.gateway.requests import ChatRequest, Reply
from sojourn.gateway.session import Session

KEPT = 64  # exchanges of a session that a retry finds again


@dataclass
class Exchange:
    """Holds a request of a session whose replies are sampled in a task of their own. `gone` says that its client left
    before it had them."""

    session: Session
    task: asyncio.Task[list[Reply]]
    gone: bool = False

    def delivered(self) -> None:
        """Takes note that the replies were sent."""
        self.session.delivered.update(reply.number for reply in self.task.result())

    async def replies(self) -> Sequence[Reply]:
        """Waits for the replies; who waits may be cancelled, and the sampling goes on."""
        return await asyncio.shield(self.task)


@dataclass
class Exchanges:
    """Keeps the latest exchanges of a session, by their requests' bodies."""

    session: Session
    _latest: OrderedDict[str, Exchange] = field(default_factory=OrderedDict[str, Exchange])

    def begin(self, request: ChatRequest, body: bytes, *, retried: bool) -> Exchange:
        """Returns the exchange of a request: an earlier one of the same body whose client left, or that the client says
        it repeats (`retried`), so that nothing is sampled twice; else a new one. Equal requests at the same time each
        get a reply of their own."""
        digest = hashlib.blake2b(body, digest_size=16).hexdigest()
        known = self._latest.get(digest)
        if known is not None and (retried or known.gone) and not _failed(known):
            known.gone = False
            self.session.counts["repeated_requests"] += 1
            return known
        exchange = Exchange(self.session, asyncio.create_task(self.session.reply(request)))
        exchange.task.add_done_callback(_seen)
        self._latest[digest] = exchange
        self._latest.move_to_end(digest)
        while len(self._latest) > KEPT:
            self._latest.popitem(last=False)
        return exchange


def _failed(exchange: Exchange) -> bool:
    task = exchange.task
    return task.done() and (task.cancelled() or task.exception() is not None)


def _seen(task: asyncio.Task[list[Reply]]) -> None:
    """Takes note of a failure, which asyncio would else report where nobody waits any more."""
    if not task.cancelled():
        task.exception()
