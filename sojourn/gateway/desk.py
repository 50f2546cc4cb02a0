"""Where services elsewhere take episodes: they open a session over HTTP, act, and close it."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sojourn.gateway.bodies import Limits, json_object, read_body, require_local_origin
from sojourn.gateway.hosts import LOCAL
from sojourn.gateway.requests import Api, RequestError
from sojourn.gateway.server import CHAT, answering, required_token
from sojourn.gateway.service import Service
from sojourn.gateway.session import Session
from sojourn.gateway.world_port import WorldPort

WAIT_S, MOST_WAIT_S, PAUSE_S = 20.0, 60.0, 0.02
CLOSING = ("reward", "failure", "output")  # fields of a body that closes a session
LARGEST = 1e6  # reward


class Place(NamedTuple):
    """Says where services reach the sessions of a run. `token` is what they send as the API key to open one (empty:
    none is asked for), `url` the address by which they reach it (empty: that of `host` and `port`)."""

    host: str
    port: int
    token: str
    url: str


class Closed(NamedTuple):
    """Says how a service closed its session: with a reward, with why it failed, or with neither."""

    reward: float | None
    failure: str
    output: str


@dataclass(eq=False)
class Ticket:
    """Holds an episode for services: what the one that takes it is told, and its last sign of life there."""

    session: Session
    port: WorldPort
    told: Callable[[str], Mapping[str, Any]]  # given the address of the server
    rewards: bool  # whether a service may give one
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Future[Closed] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    requests: int = 0  # under way
    seen: float = 0.0  # when it last asked for something, by the event loop's clock

    def touch(self, requests: int = 0) -> None:
        self.requests += requests
        self.seen = asyncio.get_running_loop().time()


@dataclass(eq=False)
class Desk:
    """Gives each waiting episode to one service that asks for it, the first to come first."""

    place: Place
    limits: Limits = field(default_factory=Limits)
    waiting: deque[Ticket] = field(default_factory=deque[Ticket])
    tickets: dict[str, Ticket] = field(default_factory=dict[str, Ticket])
    service: Service = field(init=False)

    def __post_init__(self) -> None:
        host, port, _, _ = self.place
        known = LOCAL if host in LOCAL else ("*",)  # elsewhere, the token and the sessions' keys let nobody else in
        self.service = Service(
            host=host, port=port, hosts=known, more=self.routes(), app_of=lambda app: Watching(app, self.tickets)
        )

    @property
    def url(self) -> str:
        return self.place.url.rstrip("/") or self.service.url

    def add(self, ticket: Ticket) -> None:
        self.service.add(ticket.session, ticket.port)
        self.tickets[ticket.session.key] = ticket
        self.waiting.append(ticket)

    def remove(self, ticket: Ticket) -> None:
        self.service.remove(ticket.session.key)
        self.tickets.pop(ticket.session.key, None)
        if ticket in self.waiting:
            self.waiting.remove(ticket)

    def routes(self) -> Sequence[Route]:
        return [
            Route("/open", answering(CHAT, self._open), methods=["POST"]),
            Route("/s/{session}/alive", answering(CHAT, self._alive), methods=["POST"]),
            Route("/s/{session}/close", answering(CHAT, self._close), methods=["POST"]),
        ]

    async def _open(self, api: Api, request: Request) -> Response:
        """Gives an episode to whoever asks, and waits for one for at most `wait_s`; the answer is empty (204) where
        there is none."""
        require_local_origin(request)
        required_token(request, self.place.token)
        body = await _body(request, self.limits, ("wait_s",))
        wait = body.get("wait_s", WAIT_S)
        if not _is_number(wait) or not 0 <= wait <= MOST_WAIT_S:
            raise RequestError(f"wait_s = {wait!r:.60}: expected seconds from 0 to {MOST_WAIT_S:g}", param="wait_s")
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        while not self.waiting and loop.time() < until and not await request.is_disconnected():  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_S)
        if await request.is_disconnected() or not self.waiting:  # others may take it meanwhile
            return Response(status_code=204)
        ticket = self.waiting.popleft()
        ticket.touch()
        ticket.taken.set()
        return JSONResponse(dict(ticket.told(self.url)))

    def _ticket(self, request: Request) -> Ticket:
        require_local_origin(request)
        ticket = self.tickets.get(request.path_params["session"])
        if ticket is None or not ticket.taken.is_set():
            raise RequestError("no session of this key is open: its episode is over", status=404, code="no_session")
        return ticket

    async def _alive(self, api: Api, request: Request) -> Response:
        """Tells whether the episode goes on; like any request of a session, it is a sign of life."""
        return JSONResponse({"done": self._ticket(request).port.over})

    async def _close(self, api: Api, request: Request) -> Response:
        ticket = self._ticket(request)
        body = await _body(request, self.limits, CLOSING)
        reward, failure, output = body.get("reward"), body.get("failure") or "", body.get("output") or ""
        for name, text in (("failure", failure), ("output", output)):
            if not isinstance(text, str):
                raise RequestError(f"{name} = {text!r:.60}: expected a text", param=name)
        if reward is not None and not ticket.rewards:
            raise RequestError("this run takes no rewards of services: leave it out", status=403, param="reward")
        if reward is not None and not (_is_number(reward) and abs(reward) <= LARGEST):
            raise RequestError(f"reward = {reward!r:.60}: expected a number of at most {LARGEST:g}", param="reward")
        if reward is not None and failure:
            raise RequestError("a session that failed has no reward: leave one of them out", param="reward")
        if ticket.closed.done():
            raise RequestError("this session is closed already", status=409, code="closed")
        ticket.closed.set_result(Closed(None if reward is None else float(reward), failure, output))
        return JSONResponse({"closed": True})


@dataclass(frozen=True)
class Watching:
    """Notes every request of a session as a sign of life of its service."""

    app: ASGIApp
    tickets: Mapping[str, Ticket]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = scope.get("path", "").split("/")
        ticket = self.tickets.get(parts[2]) if len(parts) > 2 and parts[1] == "s" else None
        if ticket is None:
            return await self.app(scope, receive, send)
        ticket.touch(1)
        try:
            await self.app(scope, receive, send)
        finally:
            ticket.touch(-1)
        return None


async def _body(request: Request, limits: Limits, known: Sequence[str]) -> Mapping[str, Any]:
    """Returns the body of a request, which may be empty; raises `RequestError` for fields that are not known."""
    body = await read_body(request, limits)
    found = json_object(body) if body.strip() else {}
    if unknown := sorted(set(found) - set(known)):
        raise RequestError(f"there is no field {unknown[0]!r:.60}: expected {', '.join(known)}", param=unknown[0][:60])
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_desks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Place, Desk]] = WeakKeyDictionary()


async def running_desk(place: Place) -> Desk:
    """Returns the desk of this event loop at a place, which is served then."""
    desks = _desks.setdefault(asyncio.get_running_loop(), {})
    desk = desks.get(place) or desks.setdefault(place, Desk(place))
    await desk.service.open()
    return desk
