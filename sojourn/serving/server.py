"""Runs the server of a model: it binds its address, tells how it is used, and ends in order when it is told to."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sojourn.errors import ConfigError
from sojourn.gateway.bodies import Limits
from sojourn.gateway.hosts import LOCAL
from sojourn.gateway.packets import Packets
from sojourn.gateway.requests import Api, RequestError
from sojourn.gateway.server import CHAT, Gateway
from sojourn.gateway.service import QuietServer
from sojourn.gateway.session import Session
from sojourn.protocols import AgentContext
from sojourn.seeds import seed_of
from sojourn.serving import exposition
from sojourn.serving.bounded_sessions import BoundedSessions
from sojourn.serving.measures import Measures
from sojourn.serving.opening import Served
from sojourn.serving.watched import Watched, measured_apis
from sojourn.types import SamplingParams

POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Address:
    """Says where a server listens, and the token that it asks for (empty: none). `token_from` is the environment
    variable that has it, where one has."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""
    token_from: str = ""

    @property
    def local(self) -> bool:
        """Returns whether only this machine reaches the address."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False

    @classmethod
    def of(cls, host: str, port: int, variable: str) -> Address:
        """Returns an address with the token of an environment variable; where that is not named, a public address gets
        a new one."""
        plain = cls(host=host, port=port, token_from=variable)
        if not variable:
            return plain if plain.local else replace(plain, token=secrets.token_urlsafe(24))
        if not (token := os.environ.get(variable, "")):
            raise ConfigError(
                f"--token {variable}: there is no token in this environment variable: set it, or leave --token out "
                + ("to serve without one" if plain.local else "to get a new one")
            )
        return replace(plain, token=token)

    def bind(self) -> socket.socket:
        """Returns a socket with the address, which does not listen yet. Raises `ConfigError` where it is taken."""
        found = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((self.host, self.port))
        except (OSError, OverflowError) as error:
            found.close()
            raise ConfigError(
                f"the server cannot listen on --host {self.host} --port {self.port} ({error}): choose another port (0 "
                "takes any free one) or host"
            ) from None
        return found


@dataclass(frozen=True, kw_only=True)
class Service:
    """Says what a server offers: `names` are those of its model, `params` how it is sampled where the client does not
    say, `sessions` and `turns` how much is remembered. When the server ends, running requests have `grace_s` seconds.
    `seed` decides all samples; without one, each start of the server gives others."""

    names: tuple[str, ...]
    params: SamplingParams
    limits: Limits = field(default_factory=Limits)
    sessions: int = 10_000
    turns: int = 100_000
    seed: int | None = None
    grace_s: float = 30.0


class Server:
    """A model that is open, behind the APIs of the gateway, with `/health` and `/metrics`."""

    def __init__(self, served: Served, service: Service, address: Address) -> None:
        self.served, self.address, self.service = served, address, service
        self.measures = Measures()
        seed = secrets.randbits(63) if service.seed is None else service.seed
        params = replace(service.params, max_tokens=min(service.params.max_tokens, served.max_context))

        self.params = replace(params, seed=seed)
        self.sessions = BoundedSessions(self.new_session, most=service.sessions, turns=service.turns)
        self.gateway = Gateway(
            self.sessions, models=service.names, token=address.token, limits=service.limits,
            apis=self.apis(), clean=self.clean(),
        )  # fmt: skip
        routes = [Route("/health", self._health), Route("/metrics", self._metrics), *self.routes()]
        hosts = LOCAL if address.local else ["*"]
        self.app = Watched(self.gateway.app(hosts, routes), self.measures)

    def new_session(self, key: str) -> Session:
        """Returns a new session, whose client says how its replies are sampled."""
        return Session(key, self.context(self.served, key), sampling="client", observe=self.measures.reply)

    def context(self, served: Served, key: str) -> AgentContext:
        """Returns the context of a session that a model answers."""
        generation = self.sessions.generation(key)
        return AgentContext(
            name="agent", renderer=served.renderer, sampler=served.engine, max_context=served.max_context,
            params=replace(self.params, seed=seed_of(self.params.seed, key, *([generation] if generation else []))),
        )  # fmt: skip

    def apis(self) -> Mapping[str, Api]:
        """Returns the APIs by which the model is asked."""
        return measured_apis(self.measures)

    def clean(self) -> Callable[[bytes], str] | None:
        """Returns what makes of a request's body what is kept of it, None where nothing is."""
        return None

    def routes(self) -> list[Route]:
        """Returns further paths of the server."""
        return []

    async def run(self, bound: socket.socket, tell: Callable[[str], None]) -> None:
        """Serves until a signal asks it to end; then the running requests are finished. `tell` is given the lines that
        say how the server is used, when it is ready."""
        config = uvicorn.Config(
            self.app, http=Packets, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        server = QuietServer(config)
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number, end)
        serving = asyncio.create_task(server.serve([bound]))
        ending = asyncio.create_task(end.wait())
        try:
            while not (server.started or serving.done()):  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
            if server.started:
                for line in usage(self.address, bound.getsockname()[1], self.service.names[0]):
                    tell(line)
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
            if end.is_set():
                await self._finish()
            server.should_exit = True
            await serving
        finally:
            ending.cancel()
            await self.served.engine.close()

    def _signalled(self, number: int, end: asyncio.Event) -> None:
        """Begins to end the server; a second signal ends the process at once."""
        if self.app.ending:
            os._exit(128 + number)
        self.app.ending = True
        if self.app.running:
            say(f"{self.app.running} requests are under way: they have {self.service.grace_s:g} s; again to end now")
        end.set()

    async def _finish(self) -> None:
        """Waits until no request is under way, for as long as these are given."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.service.grace_s
        while self.app.running and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        if self.app.running:
            say(f"{self.app.running} requests did not end in time, and are cut off")

    async def _health(self, request: Request) -> Response:
        """Tells whether requests are answered now."""
        ending = self.app.ending
        return JSONResponse({"status": "ending" if ending else "ok"}, 503 if ending else 200)

    async def _metrics(self, request: Request) -> Response:
        try:
            self.gateway.require_token(request)
        except RequestError as error:
            return JSONResponse(dict(CHAT.error(error)), error.status)
        self.measures.sessions.set(self.sessions.count)
        return Response(self.measures.text(self.served.engine), media_type=exposition.CONTENT_TYPE)


def usage(address: Address, port: int, model: str) -> Iterator[str]:
    """Yields the lines that say where a server is, and how it is asked."""
    host = socket.gethostname() if address.host in ("0.0.0.0", "::") else address.host
    base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    yield f"OpenAI base URL:     {base}/v1  (chat completions, responses)"
    yield f"Anthropic base URL:  {base}  (messages)"
    yield f"a session by name:   {base}/s/NAME/v1 and {base}/s/NAME"
    yield f"state and figures:   {base}/health and {base}/metrics"
    key = ""
    if address.token:
        shown = f"${address.token_from}" if address.token_from else address.token
        yield f"API key:             {shown}"
        key = f' -H "Authorization: Bearer {shown}"'
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    yield f"curl {base}/v1/chat/completions{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}"


def say(sentence: str) -> None:
    print(f"sojourn serve: {sentence}", file=sys.stderr, flush=True)
