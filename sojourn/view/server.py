"""The viewer's server. It listens on loopback and asks for a token elsewhere; it requests nothing, and writes nothing
but re-runs and answers to questions, where that is allowed.

Every page can be reached by its address alone. Text of agents and environments is escaped by `page.py`, and the content
security policy of every response allows no script but the viewer's own file.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import socket
import webbrowser
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sojourn.errors import ConfigError, RecordError, SojournError
from sojourn.record.atomic import require_writable_folder
from sojourn.view import forms, page
from sojourn.view.pages import (
    diff,
    episode,
    evaluation_changes,
    files,
    find,
    group,
    live,
    parts,
    questions,
    rerun,
    run,
    runs,
    step,
)
from sojourn.view.reruns import Reruns
from sojourn.view.run_cache import RunCache

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


class Number(Convertor[int]):
    """A number in an address. It has at most 18 digits so that it fits SQLite; a longer one gives 404."""

    regex = "[0-9]{1,18}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", Number())
LOCAL = ("localhost", "127.0.0.1", "[::1]")  # names of this machine
POLL_S = 0.5  # between two checks of whether a run has changed
COOKIE = "sojourn_token_"  # begins the name, which has a hash: browsers do not tell the ports of a host apart


def application(
    folders: Sequence[Path],
    hosts: Sequence[str] = LOCAL,
    token: str = "",
    reruns: Reruns | None = None,
    answering: str = "",
) -> Starlette:
    """Returns the viewer of the runs in some folders.

    With a `token`, every request needs it. With `reruns`, episodes can be re-run; they are closed when the server ends.
    With `answering`, which is in every form, people can answer the questions of agents.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        if reruns is not None:
            await asyncio.to_thread(reruns.close)

    app = Starlette(
        routes=_routes(),
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)),
            Middleware(Guard, token=token),
        ],
        exception_handlers={SojournError: error_page, forms.RefusedError: rerun.refused, 404: error_page},
        lifespan=lifespan,
    )
    app.state.run_cache = RunCache(tuple(folders))
    app.state.reruns = reruns
    app.state.answering = answering
    app.state.ending = lambda: False  # `serve` replaces it, so that event streams end with the server
    return app


def _routes() -> list[Route | Mount]:
    return [
        Route("/", page.with_fingerprint(runs.index)),
        Route("/diff", page.with_fingerprint(diff.index)),
        Route("/events", events),
        Route("/runs/{run}", page.with_fingerprint(run.index)),
        Route("/runs/{run}/parts", page.with_fingerprint(parts.index)),
        Route("/runs/{run}/questions", page.with_fingerprint(questions.index)),
        Route("/runs/{run}/questions", questions.answer, methods=["POST"]),
        Route("/runs/{run}/live", page.with_fingerprint(live.index, live=True)),
        Route("/runs/{run}/live/{session:path}", page.with_fingerprint(live.session, live=True)),
        Route("/runs/{run}/find", page.with_fingerprint(find.index)),
        Route("/runs/{run}/changes", page.with_fingerprint(evaluation_changes.index)),
        Route("/runs/{run}/steps/{stage:path}/{step:number}", page.with_fingerprint(step.index)),
        Route("/runs/{run}/groups/{stage:path}/{step:number}/{place:number}", group.index),
        Route("/runs/{run}/episodes/{episode:path}", episode.index),
        Route("/runs/{run}/json/{episode:path}", files.as_json),
        Route("/runs/{run}/export/{format}/{episode:path}", files.export_episode),
        Route("/runs/{run}/text/live/{turn:number}/{session:path}", live.text),
        Route("/runs/{run}/text/notes/{turn}/{episode:path}", files.notes),
        Route("/runs/{run}/text/{seat:number}/{turn:number}/{message:number}/{episode:path}", files.text),
        Route("/runs/{run}/blobs/{digest}", files.blob),
        Route("/rerun", rerun.start, methods=["POST"]),
        Route("/rerun/{turn:number}/{run}/{episode:path}", rerun.new_rerun),
        Route("/play", rerun.rerun_list),
        Route("/play/{rerun}", rerun.index),
        Route("/play/{rerun}/act", rerun.act, methods=["POST"]),
        Route("/play/{rerun}/end", rerun.end, methods=["POST"]),
        Route("/play/{rerun}/save", rerun.save, methods=["POST"]),
        Route("/play/{rerun}/blobs/{digest}", rerun.blob),
        Route("/play/{rerun}/text/{turn:number}/{message:number}", rerun.text),
        Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
    ]


class Guard:
    """Adds security headers to every response, and checks the token: given as `?token=` once, then kept in a cookie."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token
        self.cookie = COOKIE + hashlib.sha256(token.encode()).hexdigest()[:12]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = POLICY
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "same-origin"  # so that forms say where they are from
                own = scope["path"].startswith("/static/")  # whose address changes with what is in it
                headers.setdefault("Cache-Control", "private, max-age=31536000, immutable" if own else "no-store")
            await send(message)

        request = HTTPConnection(scope)
        if not self.token or self._is_token(request.cookies.get(self.cookie, "")):
            await self.app(scope, receive, guarded)
        elif self._is_token(request.query_params.get("token", "")):
            rest = QueryParams([(key, value) for key, value in request.query_params.multi_items() if key != "token"])
            answer = RedirectResponse(request.url.path + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
            await answer(scope, receive, guarded)
        else:
            refused = PlainTextResponse(
                "This viewer needs a token: open the address that it printed at its start.\n", 403
            )
            await refused(scope, receive, guarded)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


async def error_page(request: Request, error: Exception) -> page.Page:
    """Renders the page for an address that names nothing, or something that cannot be read; and for a form that asks
    for what cannot be done."""
    message = str(error) if isinstance(error, SojournError) else f"there is no page {request.url.path}"
    asked = isinstance(error, SojournError) and request.method == "POST"
    title = "Not done" if asked else "Not found"
    return page.render(request, "error.html", status_code=404, title=title, message=message)


async def events(request: Request) -> StreamingResponse:
    """Sends a server-sent event whenever the run (or any run, if none is named) differs from the page's fingerprint."""
    cache: RunCache = request.app.state.run_cache
    key, before = request.query_params.get("run") or None, request.query_params.get("fingerprint", "")
    live = request.query_params.get("live") == "store"

    async def changes() -> AsyncIterator[bytes]:
        seen, quiet_s = before, 0.0
        yield b"retry: 1000\n\n"
        while not request.app.state.ending():
            now = await asyncio.to_thread(cache.fingerprint, key, live)
            if now != seen:
                seen, quiet_s = now, 0.0
                yield b"data: changed\n\n"
            elif (quiet_s := quiet_s + POLL_S) > 15:
                quiet_s = 0.0
                yield b": still here\n\n"
            await asyncio.sleep(POLL_S)

    return StreamingResponse(changes(), media_type="text/event-stream")


def serve(
    folders: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 7864,
    browser: bool = False,
    play: bool = False,
    answer: bool = False,
    out: Path | None = None,
) -> None:
    """Serves the runs of some folders on the first free port from `port` on, until it is interrupted.

    With `play`, episodes can be re-run, and saved under `out`; with `answer`, questions of agents can be answered.
    """
    for folder in folders:
        if not folder.is_dir():
            raise RecordError(f"there is no folder '{folder}': name the folder of your runs, or train something first")
    if out is not None:
        require_writable_folder(out)
    local = _is_loopback(host)
    token = "" if local else secrets.token_urlsafe(16)
    bound = _bind(host, port)
    netloc = f"[{host}]" if ":" in host else host
    address = f"http://{netloc}:{bound.getsockname()[1]}/" + (f"?token={token}" if token else "")
    reruns = Reruns(out) if play else None
    served = [*folders, *([out] if out is not None else ())]
    hosts = (*LOCAL, netloc) if local else ("*",)
    answering = secrets.token_urlsafe(16) if answer else ""
    app = application(served, token=token, reruns=reruns, answering=answering, hosts=hosts)
    print(f"sojourn view: {address}  (press Ctrl-C to stop)", flush=True)
    if browser:
        webbrowser.open(address)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, lifespan="on")
    server = uvicorn.Server(config)
    app.state.ending = lambda: server.should_exit
    server.run(sockets=[bound])


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    """Returns a listening socket on the port, or on one of the next nineteen (any port for 0)."""
    failure: OSError | None = None
    for number in range(port, min(port + 20, 1 << 16)) if port else (0,):
        try:
            return socket.create_server((host, number), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            failure = error
    raise ConfigError(
        f"the viewer cannot listen on --host {host} --port {port} ({failure}): choose another port or host"
    )
