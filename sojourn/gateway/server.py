"""The gateway's HTTP server: it reads requests within limits, hands them to their session, and writes the replies."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from sojourn.gateway.bodies import Limits, has_left, json_object, read_body, require_local_origin
from sojourn.gateway.chat_completions import ChatCompletions
from sojourn.gateway.exchange import Exchange
from sojourn.gateway.hosts import LOCAL, KnownHosts
from sojourn.gateway.messages import Messages
from sojourn.gateway.request_notes import LONGEST_CLIENT, cut
from sojourn.gateway.requests import Api, ChatRequest, Received, Reply, ReplyStream, RequestError
from sojourn.gateway.responses import Responses
from sojourn.gateway.session import Session
from sojourn.gateway.sessions import Sessions

CHAT, MESSAGES = ChatCompletions(), Messages()
APIS: dict[str, Api] = {"chat/completions": CHAT, "responses": Responses(), "messages": MESSAGES}
SESSION_HEADERS = ("x-session-id", "session-id", "x-claude-code-session-id")
KEEPALIVE_S = 10.0  # between two signs of life while a reply is sampled
BEARER = re.compile(r"^bearer +", re.IGNORECASE)
KEEPALIVE = ": keepalive\n"
KEY = re.compile(r"[A-Za-z0-9._~:@+=-]{0,256}")  # of a session


@dataclass
class Gateway:
    """Answers the requests of agents for the replies of a model, each as the turn of a session.

    A session is named by the path (`/s/KEY/v1/...`) or, where it has none, by the API key, if that is the key of an
    open session, or by a header that clients send. With `token`, every request needs it as its API key, but for those
    on the path of a session that was opened for them: its key is known to them alone. `models` are the names that the
    list of models tells; a request may name any. `apis` are the APIs by their paths below `/v1`. `clean` makes of a
    JSON body what may be kept of it with its turn; where there is none, nothing is kept of requests but what turns say.
    """

    sessions: Sessions
    models: Sequence[str] = ("policy",)
    token: str = ""
    limits: Limits = field(default_factory=Limits)
    apis: Mapping[str, Api] = field(default_factory=lambda: APIS)
    clean: Callable[[bytes], str] | None = None
    _reading: int = 0
    _sampling: set[asyncio.Task[list[Reply]]] = field(default_factory=set[asyncio.Task[list[Reply]]])

    def app(self, hosts: Sequence[str] = LOCAL, more: Sequence[Route] = ()) -> Starlette:
        """Returns the server's application, which answers to these names of its host, with `more` paths, which come
        before its own."""
        alive = [Route(path, _alive, methods=["GET", "HEAD"]) for path in ("/", "/s/{session}", "/health")]
        routes = [*more, *alive]
        for prefix in ("/v1", "/s/{session}/v1"):
            routes += [Route(f"{prefix}/{path}", answering(api, self._answer), methods=["POST"])
                       for path, api in self.apis.items()]  # fmt: skip
            counts = answering(MESSAGES, self._count)
            routes.append(Route(f"{prefix}/messages/count_tokens", counts, methods=["POST"]))
            routes.append(Route(f"{prefix}/models", answering(CHAT, self._models)))
        known = Middleware(KnownHosts, hosts=hosts, refuse=_refused_at)
        return Starlette(routes=routes, middleware=[known], exception_handlers={HTTPException: _no_route})

    @property
    def running(self) -> int:
        """Returns how many requests are under way: their bodies are read, or replies to them are sampled. Who reads a
        reply slowly does not count."""
        return self._reading + len(self._sampling)

    def session_of(self, request: Request) -> Session:
        """Returns the session of a request; raises `RequestError` where it may not have one."""
        return self.sessions.get(self.key_of(request))

    def key_of(self, request: Request) -> str:
        """Returns the key of the session that a request may use; raises `RequestError` where it may use none."""
        require_local_origin(request)
        key = request.path_params.get("session")
        if key is None or self.sessions.new is not None:
            given = self.require_token(request)
            named = (value for name in SESSION_HEADERS if (value := request.headers.get(name)))
            key = key if key is not None else given if self.sessions.new is None else next(named, "")
        if not KEY.fullmatch(key):
            raise RequestError(
                "the key of a session has at most 256 letters, digits and ._~:@+=-: expected such a one",
                code="invalid_session",
            )
        return key

    def require_token(self, request: Request) -> str:
        """Returns the API key of a request; raises `RequestError` where it is not the server's token."""
        return required_token(request, self.token)

    async def _models(self, api: Api, request: Request) -> Response:
        self.session_of(request)
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "sojourn"} for name in self.models]
        return JSONResponse({"object": "list", "data": models})

    async def _count(self, api: Api, request: Request) -> Response:
        """Tells how many tokens the prompt of a request of Anthropic's API has."""
        session = self.session_of(request)
        asked = _asked(api, await read_body(request, self.limits))
        return JSONResponse(dict(MESSAGES.counted(session.prompt_tokens(asked))))

    async def _answer(self, api: Api, request: Request) -> Response:
        session = self.session_of(request)
        if self.running >= self.limits.at_once:
            busy = RequestError(
                f"{self.running} requests are under way, as many as this server answers at once: come again",
                status=503, code="busy",
            )  # fmt: skip
            session.refuse_as_busy(busy)
            raise busy
        with self._counted():
            body = await read_body(request, self.limits)
            asked = replace(_asked(api, body), received=self._received(request, body))
            retried = request.headers.get("x-stainless-retry-count", "0") not in ("0", "")
            exchange = session.exchanges.begin(asked, body, retried=retried)
        self._sampling.add(exchange.task)
        exchange.task.add_done_callback(self._sampling.discard)
        if asked.stream:
            await exchange.begun(KEEPALIVE_S)  # what fails before its first token is told by the status
            if not exchange.failed:
                return EventStream(_frames(api.stream(asked), exchange), exchange)
        with exchange.answered():
            replies = await exchange.replies()
            if not has_left(request):
                exchange.delivered()
        return JSONResponse(dict(api.whole(asked, replies)))

    def _received(self, request: Request, body: bytes) -> Received | None:
        """Returns what is kept of a request: of its headers, the client's name alone."""
        if self.clean is None:
            return None
        path, client = request.url.path.partition("/v1/")[2], request.headers.get("user-agent", "")
        quoted = '"' + client[:LONGEST_CLIENT].replace('"', "'") + '"'
        name = self.clean(quoted.encode(errors="replace")).strip('"')
        return Received(api=path.replace("/", " "), client=name, body=cut(self.clean(body)))

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Counts a request while its body is read."""
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1


def required_token(request: Request, token: str) -> str:
    """Returns the API key of a request; raises `RequestError` where it is not the token that a server asks for (empty:
    none). A client may send two keys, one of which is another service's."""
    bearer = BEARER.sub("", request.headers.get("authorization", ""))
    given = [key for key in (request.headers.get("x-api-key"), bearer) if key] or [""]
    if not token:
        return given[0]
    if not any(hmac.compare_digest(key.encode(), token.encode()) for key in given):
        raise RequestError("this server wants its token as the API key", status=401, code="invalid_api_key")
    return token


class EventStream(StreamingResponse):
    """Sends the replies of an exchange as server-sent events, at the pace at which the client reads."""

    def __init__(self, frames: AsyncGenerator[str, None], exchange: Exchange) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(frames, media_type="text/event-stream", headers=headers)
        self.frames, self.exchange = frames, exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.exchange.answered():
            async with aclosing(self.frames):
                await super().__call__(scope, receive, send)


async def _frames(stream: ReplyStream, exchange: Exchange) -> AsyncGenerator[str, None]:
    """Yields the events of replies while they are sampled. The last of them goes out when the turns are recorded."""
    try:
        yield "".join(stream.begin())
        async with aclosing(exchange.deltas(KEEPALIVE_S)) as deltas:
            async for new in deltas:
                yield "".join(frame for delta in new for frame in stream.delta(delta)) or KEEPALIVE
        yield "".join(stream.end(await exchange.replies()))
        exchange.delivered()
    except Exception as error:  # the status is sent already: what went wrong is the last event
        failure = error if isinstance(error, RequestError) else RequestError(f"{error}", status=500, code="failed")
        yield "".join(stream.failed(failure))


def answering(api: Api, answer: Callable[[Api, Request], Awaitable[Response]]) -> Callable[[Request], Any]:
    """Returns what answers the requests of a path; errors have the API's own form."""

    async def handle(request: Request) -> Response:
        try:
            return await answer(api, request)
        except RequestError as error:
            return _refused(api, error)
        except Exception as error:  # whatever a renderer or an engine raises, the server goes on
            reason = f"the request failed: {type(error).__name__}: {error}"
            return _refused(api, RequestError(reason, status=500, code="failed"))

    return handle


def _refused(api: Api, error: RequestError) -> Response:
    headers = {"Retry-After": "1"} if error.status == 503 else {}
    if error.status < 500 and error.status != 408:
        headers["x-should-retry"] = "false"
    return JSONResponse(dict(api.error(error)), status_code=error.status, headers=headers)


async def _alive(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


def _asked(api: Api, body: bytes) -> ChatRequest:
    return api.read(json_object(body))


def _api_at(path: str) -> Api:
    """Returns the API in whose form an error at a path is told."""
    return MESSAGES if path.rstrip("/").endswith(("/messages", "/messages/count_tokens")) else CHAT


def _refused_at(path: str, error: RequestError) -> Response:
    return _refused(_api_at(path), error)


async def _no_route(request: Request, error: Exception) -> Response:
    """Answers requests of paths and methods that the server does not have."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    what = "this path cannot be asked in that way" if status == 405 else "this server has no such path"
    told = RequestError(f"{what}: expected POST to .../v1/ and one of {', '.join(APIS)}", status=status, code="path")
    return _refused_at(request.url.path, told)
