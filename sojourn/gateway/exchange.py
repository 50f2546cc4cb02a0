"""One HTTP request for a reply: it is sampled to its end whoever goes away meanwhile, and sampled once."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from sojourn.event_loop import cancelled
from sojourn.gateway.requests import ChatRequest, Delta, Reply, RequestError, Told
from sojourn.render.partial import PartialReader

KEPT = 64  # exchanges of a session that a retry finds again


class ReplyingSession(Protocol):
    """Replies to requests, as the session of `session.py` does, which holds the exchanges of its own."""

    counts: Counter[str]
    delivered: set[int]

    async def reply(
        self, request: ChatRequest, tell: Callable[[int, Sequence[int]], None] | None = None
    ) -> list[Reply]: ...
    def reader(self, request: ChatRequest) -> PartialReader: ...


@dataclass(eq=False)
class Exchange:
    """Holds a request of a session whose replies are sampled in a task of their own. `gone` says that its client left
    before it had them, `sent` that one has them.

    A stream reads the tokens that are sampled so far at its own pace, beside others. So one that is slow keeps nobody
    waiting, and what is kept for it is never more than the replies.
    """

    session: ReplyingSession
    request: ChatRequest
    gone: bool = False
    sent: bool = False
    task: asyncio.Task[list[Reply]] = field(init=False)
    _tokens: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # so far, by reply
    _news: asyncio.Event = field(default_factory=asyncio.Event)  # of more tokens, or the end; then it is replaced

    def __post_init__(self) -> None:
        tell = self._tell if self.request.stream else None
        self.task = asyncio.create_task(self.session.reply(self.request, tell))
        self.task.add_done_callback(self._done)

    def delivered(self) -> None:
        """Takes note that the replies were sent."""
        self.sent = True
        self.session.delivered.update(reply.number for reply in self.task.result())

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Answers a client, which is gone if it was not sent the replies by the end."""
        self.gone = self.sent = False
        try:
            yield
        finally:
            self.gone = not self.sent

    async def begun(self, seconds: float) -> None:
        """Waits until a token is told, or the replies are there, for so long at most."""
        if not self._tokens and not self.task.done():
            news = asyncio.ensure_future(self._news.wait())
            await asyncio.wait({news}, timeout=seconds)
            news.cancel()

    async def replies(self) -> Sequence[Reply]:
        """Waits for the replies; who waits may be cancelled, and the sampling goes on. Raises `RequestError` where that
        is cancelled, as its session is closed."""
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if cancelled() or not self.task.cancelled():
                raise
            raise RequestError(
                "the session was closed while this was sampled: its episode is over", status=404, code="no_session"
            ) from None

    @property
    def failed(self) -> bool:
        """Returns whether it ended without replies."""
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)

    async def deltas(self, every_s: float) -> AsyncGenerator[list[Delta], None]:
        """Yields what is new of the replies until they are there, and an empty list where nothing was for so long."""
        readers = [self.session.reader(self.request) for _ in range(self.request.samples)]
        told = [Told(number) for number in range(self.request.samples)]
        read = [0] * self.request.samples  # tokens of each
        loop = asyncio.get_running_loop()
        last = loop.time()
        while not self.task.done():
            news, found = self._news, list[Delta]()
            for number, reader in enumerate(readers):
                tokens = self._tokens[number][read[number] :]
                read[number] += len(tokens)
                found += told[number].rest(*reader.add(tokens)) if tokens else ()
            if not found:
                try:
                    async with asyncio.timeout_at(last + every_s):
                        await news.wait()
                    continue
                except TimeoutError:
                    pass
            for delta in found:
                told[delta.number].add(delta)
            yield found
            last = loop.time()

    def _tell(self, number: int, tokens: Sequence[int]) -> None:
        self._tokens[number] += tokens
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _done(self, task: asyncio.Task[list[Reply]]) -> None:
        """Takes note of the end, and of a failure, which asyncio would else report where nobody waits any more. The
        conversation is not held any longer."""
        self.request = replace(self.request, messages=(), tools=(), received=None)
        self._tokens.clear()
        self._wake()
        if not task.cancelled():
            task.exception()


@dataclass
class Exchanges:
    """Keeps the exchanges of a session that are under way, and the latest ones by their requests' bodies."""

    session: ReplyingSession
    _running: set[Exchange] = field(default_factory=set[Exchange])
    _latest: deque[tuple[str, Exchange]] = field(default_factory=lambda: deque[tuple[str, Exchange]](maxlen=KEPT))

    def begin(self, request: ChatRequest, body: bytes, *, retried: bool) -> Exchange:
        """Returns the exchange of a request: an earlier one of the same body whose client left, or that the client says
        it repeats (`retried`), so that nothing is sampled twice; else a new one. Equal requests at the same time each
        get a reply of their own."""
        digest = hashlib.blake2b(body, digest_size=16).hexdigest()
        known = [one for at, one in reversed(self._latest) if at == digest and not one.failed]
        left = [one for one in known if one.gone]
        if again := left or (known if retried else []):
            again[0].gone = False
            self.session.counts["repeated_requests"] += 1
            return again[0]
        exchange = Exchange(self.session, request)
        self._latest.append((digest, exchange))
        self._running.add(exchange)
        exchange.task.add_done_callback(lambda task: self._running.discard(exchange))
        return exchange

    def cancel(self) -> None:
        """Ends the sampling of all that are under way."""
        for exchange in self._running:
            exchange.task.cancel()
