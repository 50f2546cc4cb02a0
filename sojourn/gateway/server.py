"""The gateway's HTTP server: it reads requests within limits, hands them to their session, and writes the replies."""

from __future__ import annotations

import asyncio
import hmac
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sojourn.gateway.bodies import LOCAL, Limits, json_object, read_body, require_local_origin
from sojourn.gateway.chat_completions import ChatCompletions
from sojourn.gateway.exchange import Exchange, Exchanges
from sojourn.gateway.messages import Messages
from sojourn.gateway.requests import Api, ChatRequest, RequestError
from sojourn.gateway.responses import Responses
from sojourn.gateway.session import Session
from sojourn.gateway.sessions import Sessions

CHAT, MESSAGES = ChatCompletions(), Messages()
APIS: dict[str, Api] = {"chat/completions": CHAT, "responses": Responses(), "messages": MESSAGES}
SESSION_HEADERS = ("x-session-id", "session-id", "x-claude-code-session-id")
KEEPALIVE_S = 10.0  # between two signs of life while a reply is sampled
KEEPALIVE = ": keepalive\n"


@dataclass
class Gateway:
    """Answers the requests of agents for the replies of a model, each as the turn of a session.

    A session is named by the path (`/s/KEY/v1/...`) or, where it has none, by the API key, if that is the key of an
    open session, or by a header that clients send. With `token`, every request needs it as its API key, but for those
    on the path of a session that was opened for them: its key is known to them alone. `models` are the names that the
    list of models tells; a request may name any. `apis` are the APIs by their paths below `/v1`.
    """

    sessions: Sessions
    models: Sequence[str] = ("policy",)
    token: str = ""
    limits: Limits = field(default_factory=Limits)
    apis: Mapping[str, Api] = field(default_factory=lambda: APIS)
    running: int = 0
    _exchanges: weakref.WeakKeyDictionary[Session, Exchanges] = field(default_factory=weakref.WeakKeyDictionary)

    def app(self, hosts: Sequence[str] = (*LOCAL, "[::1]"), more: Sequence[Route] = ()) -> Starlette:
        """Returns the server's application, which answers to these names of its host, with `more` paths, which come
        before its own."""
        alive = [Route(path, _alive, methods=["GET", "HEAD"]) for path in ("/", "/s/{session}", "/health")]
        routes = [*more, *alive]
        for prefix in ("/v1", "/s/{session}/v1"):
            routes += [Route(f"{prefix}/{path}", self._handler(api, self._answer), methods=["POST"])
                       for path, api in self.apis.items()]  # fmt: skip
            counts = self._handler(MESSAGES, self._count)
            routes.append(Route(f"{prefix}/messages/count_tokens", counts, methods=["POST"]))
            routes.append(Route(f"{prefix}/models", self._handler(CHAT, self._models)))
        guard = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
        return Starlette(routes=routes, middleware=[guard])

    def exchanges(self, session: Session) -> Exchanges:
        if session not in self._exchanges:
            self._exchanges[session] = Exchanges(session)
        return self._exchanges[session]

    def session_of(self, request: Request) -> Session:
        """Returns the session of a request; raises `RequestError` where it may not have one."""
        require_local_origin(request)
        key = request.path_params.get("session")
        if key is not None and self.sessions.new is None:
            return self.sessions.get(key)
        given = self.require_token(request)
        if key is not None:
            return self.sessions.get(key)
        if self.sessions.new is None:
            return self.sessions.get(given)
        return self.sessions.get(next((value for name in SESSION_HEADERS if (value := request.headers.get(name))), ""))

    def require_token(self, request: Request) -> str:
        """Returns the API key of a request; raises `RequestError` where it is not the server's token."""
        given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.token and not hmac.compare_digest(given.encode(), self.token.encode()):
            raise RequestError("this server wants its token as the API key", status=401, code="invalid_api_key")
        return given

    def _handler(self, api: Api, answer: Callable[[Api, Request], Awaitable[Response]]) -> Callable[[Request], Any]:
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

    async def _models(self, api: Api, request: Request) -> Response:
        self.session_of(request)
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "sojourn"} for name in self.models]
        return JSONResponse({"object": "list", "data": models})

    async def _count(self, api: Api, request: Request) -> Response:
        """Tells how many tokens the prompt of a request of Anthropic's API has."""
        session = self.session_of(request)
        asked = api.read(json_object(await read_body(request, self.limits)))
        return JSONResponse(dict(MESSAGES.counted(session.prompt_tokens(asked))))

    async def _answer(self, api: Api, request: Request) -> Response:
        session = self.session_of(request)
        if self.running >= self.limits.at_once:
            raise RequestError(
                f"{self.running} requests are under way, as many as this server answers at once: come again",
                status=503, code="busy",
            )  # fmt: skip
        with self._counted():
            body = await read_body(request, self.limits)
            asked = api.read(json_object(body))
            if asked.stream and asked.samples > 1:
                raise RequestError(f"n = {asked.samples} with stream = true: expected n = 1, or no stream", param="n")
            retried = request.headers.get("x-stainless-retry-count", "0") not in ("0", "")
            exchange = self.exchanges(session).begin(asked, body, retried=retried)
            if asked.stream:
                await asyncio.wait({exchange.task}, timeout=0.001)  # for what is refused at once
                if not exchange.task.done() or exchange.task.exception() is None:
                    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
                    frames = self._streamed(api, asked, exchange)
                    return StreamingResponse(frames, media_type="text/event-stream", headers=headers)
            replies = await exchange.replies()
        if await request.is_disconnected():
            exchange.gone = True
        else:
            exchange.delivered()
        return JSONResponse(dict(api.whole(asked, replies)))

    async def _streamed(self, api: Api, asked: ChatRequest, exchange: Exchange) -> AsyncIterator[str]:
        """Yields a reply as server-sent events. The last of them goes out when the turn is recorded."""
        stream = api.stream(asked)
        try:
            with self._counted():
                for frame in stream.begin():
                    yield frame
                while not (await asyncio.wait({exchange.task}, timeout=KEEPALIVE_S))[0]:
                    yield KEEPALIVE
                for frame in stream.end((await exchange.replies())[0]):
                    yield frame
            exchange.delivered()
        except (GeneratorExit, asyncio.CancelledError):
            exchange.gone = True
            raise
        except Exception as error:  # the status is sent already: what went wrong is the last event
            failure = error if isinstance(error, RequestError) else RequestError(f"{error}", status=500, code="failed")
            for frame in stream.failed(failure):
                yield frame

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Counts a request while it is answered."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1


def _refused(api: Api, error: RequestError) -> Response:
    headers = {"Retry-After": "1"} if error.status == 503 else {}
    if error.status < 500 and error.status != 408:
        headers["x-should-retry"] = "false"
    return JSONResponse(dict(api.error(error)), status_code=error.status, headers=headers)


async def _alive(request: Request) -> Response:
    return JSONResponse({"status": "ok"})
