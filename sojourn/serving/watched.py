"""Watches the requests of a gateway: it measures them, and refuses new ones while the server ends."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sojourn.gateway.requests import Api, ChatRequest, Delta, Reply, ReplyStream, RequestError
from sojourn.gateway.server import APIS, CHAT, MESSAGES
from sojourn.serving.measures import Measures

PATH = re.compile(r"(?:/s/[^/]+)?/v1/(chat/completions|responses|messages/count_tokens|messages)")
CLIENT_LEFT = 499  # as other servers count it


@dataclass
class Seen:
    """Holds what is known of a request while it is answered: its API, when it came, its session, and how it ends.
    `named` is called with the session when it is known, before anything of the request is read."""

    api: str
    begun: float
    named: Callable[[str], None] = lambda key: None
    status: int = CLIENT_LEFT
    told: bool = False  # whether a piece of its reply was sent
    session: str = ""


_seen: ContextVar[Seen | None] = ContextVar("seen", default=None)


def tell_session(key: str) -> None:
    """Says which session the request that is answered now belongs to."""
    if (seen := _seen.get()) is not None:
        seen.session = key
        seen.named(key)


@dataclass
class Watched:
    """Wraps the application of a gateway. While `ending`, requests for replies are told to come again after `again_s`
    seconds. `named` is told the session of each request when it begins, `ended` of each request that has ended."""

    app: ASGIApp
    measures: Measures
    again_s: int = 5
    ending: bool = False
    running: int = 0
    named: Callable[[str], None] = lambda key: None
    ended: Callable[[Seen], None] = lambda seen: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if found is None:
            return await self.app(scope, receive, send)
        seen = Seen(found[1], time.perf_counter(), self.named)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.status = message["status"]
            await send(message)

        token = _seen.set(seen)
        self._count(1)
        try:
            await (self._refused(seen) if self.ending else self.app)(scope, receive, sending)
        finally:
            self._count(-1)
            _seen.reset(token)
            self.ended(seen)
            self.measures.requests.add(seen.api, str(seen.status))
            self.measures.seconds.observe(time.perf_counter() - seen.begun, seen.api)

    def _count(self, change: int) -> None:
        self.running += change
        self.measures.running.set(self.running)

    def _refused(self, seen: Seen) -> ASGIApp:
        error = RequestError("this server is ending: come again, or ask another", status=503, code="ending")
        api = MESSAGES if seen.api.startswith("messages") else CHAT
        return JSONResponse(dict(api.error(error)), 503, headers={"Retry-After": str(self.again_s)})


@dataclass(frozen=True)
class MeasuredApi:
    """Reads and writes as the API at `path` does, counts what changes nothing of its requests, and measures when the
    first piece of each streamed reply is written."""

    path: str
    api: Api
    measures: Measures

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        asked = self.api.read(body)
        self.measures.asked(self.path, asked)
        return asked

    def whole(self, request: ChatRequest, replies: Sequence[Reply]) -> Mapping[str, Any]:
        return self.api.whole(request, replies)

    def stream(self, request: ChatRequest) -> ReplyStream:
        return _MeasuredStream(self.api.stream(request), self.measures, _seen.get())

    def error(self, error: RequestError) -> Mapping[str, Any]:
        return self.api.error(error)


@dataclass(frozen=True)
class _MeasuredStream:
    stream: ReplyStream
    measures: Measures
    seen: Seen | None

    def begin(self) -> Iterator[str]:
        return self.stream.begin()

    def delta(self, delta: Delta) -> Iterator[str]:
        self._tell()
        return self.stream.delta(delta)

    def end(self, replies: Sequence[Reply]) -> Iterator[str]:
        self._tell()
        return self.stream.end(replies)

    def failed(self, error: RequestError) -> Iterator[str]:
        if self.seen is not None:
            self.seen.status = error.status
        return self.stream.failed(error)

    def _tell(self) -> None:
        if self.seen is not None and not self.seen.told:
            self.seen.told = True
            self.measures.first_token.observe(time.perf_counter() - self.seen.begun, self.seen.api)


def measured_apis(measures: Measures) -> Mapping[str, Api]:
    return {path: MeasuredApi(path, api, measures) for path, api in APIS.items()}
