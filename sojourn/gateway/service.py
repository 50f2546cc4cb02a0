"""The gateway of a run: one server for all programs that act as agents in it."""

from __future__ import annotations

import asyncio
import contextvars
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import uvicorn
from starlette.routing import Route
from starlette.types import ASGIApp

from sojourn.errors import ConfigError, InfrastructureError
from sojourn.gateway.bodies import Limits
from sojourn.gateway.hosts import LOCAL
from sojourn.gateway.known_texts import MasksOnce
from sojourn.gateway.offering import Offering
from sojourn.gateway.packets import Packets
from sojourn.gateway.request_notes import READ_BODY, cut
from sojourn.gateway.requests import RequestError
from sojourn.gateway.server import Gateway
from sojourn.gateway.session import Session
from sojourn.gateway.sessions import Sessions
from sojourn.gateway.world_port import WorldPort
from sojourn.secrets import masker

START_S = 60.0
_TEXT = r'"[^"\\]*(?:\\.[^"\\]*)*"'
LITERAL = re.compile(rf"{_TEXT}(?:\s*:\s*{_TEXT})?")  # a text of JSON, or a name and its text
IDLE_S = 3600  # for which a client may keep a connection open that it does not use


class QuietServer(uvicorn.Server):
    """A server within a program of ours, whose signals it leaves alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(eq=False)
class Service:
    """Serves the sessions of programs on this machine: at `url`, for those that reach its network, and on the Unix
    socket `path`. Each session is reached by its key alone. It listens at `host` and `port` (0: any that is free), and
    answers to the names `hosts`; `app_of` returns what is served, given the gateway's application."""

    host: str = "127.0.0.1"
    port: int = 0
    hosts: Sequence[str] = LOCAL
    more: Sequence[Route] = ()
    app_of: Callable[[ASGIApp], ASGIApp] = lambda app: app
    sessions: Sessions = field(default_factory=lambda: Sessions(most=1_000_000))
    ports: dict[str, WorldPort] = field(default_factory=dict[str, WorldPort])
    url: str = ""
    path: str = ""
    _starting: asyncio.Task[None] | None = None
    _serving: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Starts the server, once. It ends with the event loop."""
        if self._starting is None:  # in a context of its own, as it outlives whoever starts it
            loop = asyncio.get_running_loop()
            self._starting = loop.create_task(self._start(), context=contextvars.Context())
        await asyncio.shield(self._starting)

    def add(self, session: Session, port: WorldPort) -> None:
        self.sessions.open(session)
        self.ports[session.key] = port

    def remove(self, key: str) -> None:
        self.sessions.close(key)
        self.ports.pop(key, None)

    def port_of(self, key: str) -> WorldPort:
        port = self.ports.get(key)
        if port is None:
            raise RequestError("no session of this key is open: its episode is over", status=404, code="no_session")
        return port

    async def _start(self) -> None:
        limits = Limits()
        routes = [*self.more, *Offering(self.port_of, limits).routes()]
        app = Gateway(self.sessions, limits=limits, clean=without_keys()).app(self.hosts, routes)
        config = uvicorn.Config(
            self.app_of(app),
            http=Packets,
            log_level="error",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=IDLE_S,
        )
        try:
            bound = socket.create_server((self.host, self.port))
        except OSError as error:
            raise ConfigError(f"nothing can be served at {self.host}:{self.port} ({error}): choose another") from None
        server, folder = QuietServer(config), tempfile.mkdtemp(prefix="sojourn-gateway-")
        os.chmod(folder, 0o755)
        local = socket.socket(socket.AF_UNIX)
        local.bind(f"{folder}/socket")
        os.chmod(f"{folder}/socket", 0o666)  # a program in a sandbox is another user
        self.url, self.path = f"http://{self.host}:{bound.getsockname()[1]}", f"{folder}/socket"
        serving = asyncio.create_task(_served(server, [bound, local], folder))
        async with asyncio.timeout(START_S):
            while not server.started:
                if serving.done():
                    raise InfrastructureError(f"the gateway did not start: {serving.exception()}")
                await asyncio.sleep(0.005)
        self._serving = serving


def without_keys() -> Callable[[bytes], str]:
    """Returns what makes of a JSON body its text with all masked that looks like a key, by the environment of now."""
    mask = MasksOnce(masker())

    def clean(body: bytes) -> str:
        text = body.decode(errors="replace")
        if len(text) > READ_BODY:
            return mask(cut(text, READ_BODY))
        return LITERAL.sub(lambda found: mask(found[0]), text)

    return clean


async def _served(server: QuietServer, sockets: list[socket.socket], folder: str) -> None:
    """Serves until the event loop ends."""
    try:
        await server.serve(sockets)
    finally:
        for one in (*server.servers, *sockets):
            one.close()
        shutil.rmtree(folder, ignore_errors=True)


_services: WeakKeyDictionary[asyncio.AbstractEventLoop, Service] = WeakKeyDictionary()  # one for each event loop


async def running_service() -> Service:
    """Returns the service of this event loop, which runs then."""
    service = _services.setdefault(asyncio.get_running_loop(), Service())
    await service.open()
    return service
