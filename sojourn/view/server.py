"""The viewer's server: on loopback, asking for a token elsewhere; it writes nothing and fetches nothing.

Every page can be reached by its address alone. What a page shows of agents and worlds is text: `page.py` escapes it,
and the policy sent with every answer lets no script run but the viewer's own file.
"""

from __future__ import annotations

import asyncio
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
from sojourn.view import page
from sojourn.view.pages import diff, episode, evaluation_changes, files, find, group, rerun, run, runs, step
from sojourn.view.reruns import Reruns
from sojourn.view.run_cache import Shelf

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


class Number(Convertor[int]):
    """A number of an address, small enough for the index; a longer one names no page."""

    regex = "[0-9]{1,18}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", Number())
LOOK_S = 0.5  # between two looks at whether a run has changed
COOKIE = "sojourn_token"


def application(
    folders: Sequence[Path],
    hosts: Sequence[str] = ("localhost", "127.0.0.1", "[::1]"),
    token: str = "",
    reruns: Reruns | None = None,
) -> Starlette:
    """The viewer of the runs in some folders; a `token` is asked of whoever comes, where there is one. Episodes can be
    played again where there are `reruns`, which are closed when its server ends."""

    @asynccontextmanager
    async def living(app: Starlette) -> AsyncIterator[None]:
        yield
        if reruns is not None:
            await asyncio.to_thread(reruns.close)

    routes = [
        Route("/", page.marked(runs.index)),
        Route("/diff", page.marked(diff.index)),
        Route("/events", events),
        Route("/runs/{run}", page.marked(run.index)),
        Route("/runs/{run}/find", page.marked(find.index)),
        Route("/runs/{run}/panels", page.marked(evaluation_changes.index)),
        Route("/runs/{run}/steps/{stage:path}/{step:number}", page.marked(step.index)),
        Route("/runs/{run}/groups/{stage:path}/{step:number}/{place:number}", group.index),
        Route("/runs/{run}/episodes/{episode:path}", episode.index),
        Route("/runs/{run}/json/{episode:path}", files.as_json),
        Route("/runs/{run}/export/{format}/{episode:path}", files.exported),
        Route("/runs/{run}/text/{seat:number}/{turn:number}/{message:number}/{episode:path}", files.text),
        Route("/runs/{run}/blobs/{digest}", files.blob),
        Route("/rerun", rerun.begin, methods=["POST"]),
        Route("/rerun/{turn:number}/{run}/{episode:path}", rerun.choose),
        Route("/play", rerun.plays),
        Route("/play/{play}", rerun.play),
        Route("/play/{play}/act", rerun.act, methods=["POST"]),
        Route("/play/{play}/end", rerun.end, methods=["POST"]),
        Route("/play/{play}/keep", rerun.kept, methods=["POST"]),
        Route("/play/{play}/blobs/{digest}", rerun.blob),
        Route("/play/{play}/text/{turn:number}/{message:number}", rerun.text),
        Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
    ]
    made = Starlette(
        routes=routes,
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)),
            Middleware(Guard, token=token),
        ],
        exception_handlers={SojournError: _missing, rerun.RefusedError: rerun.refused, 404: _missing},
        lifespan=living,
    )
    made.state.shelf = Shelf(tuple(folders))
    made.state.reruns = reruns
    made.state.ending = lambda: False  # whether streams are to end, so that the server can
    return made


class Guard:
    """Sends the policy with every answer, and lets in who has the token, once by `?token=`, then by a cookie."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token

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

        asked = HTTPConnection(scope)
        given = asked.query_params.get("token", "")
        if not self.token or self._fits(asked.cookies.get(COOKIE, "")):
            await self.app(scope, receive, guarded)
        elif self._fits(given):
            rest = QueryParams([(key, value) for key, value in asked.query_params.multi_items() if key != "token"])
            answer = RedirectResponse(asked.url.path + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            await answer(scope, receive, guarded)
        else:
            refused = PlainTextResponse("This viewer asks for a token: open the address that it printed.\n", 403)
            await refused(scope, receive, guarded)

    def _fits(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


async def _missing(request: Request, error: Exception) -> page.Page:
    told = str(error) if isinstance(error, SojournError) else f"there is no page {request.url.path}"
    return page.render(request, "error.html", status_code=404, told=told)


async def events(request: Request) -> StreamingResponse:
    """Server-sent events: a word whenever a run, or any run where none is named, is not as the page's mark says."""
    shelf: Shelf = request.app.state.shelf
    key, before = request.query_params.get("run") or None, request.query_params.get("mark", "")

    async def said() -> AsyncIterator[bytes]:
        seen, quiet_s = before, 0.0
        yield b"retry: 1000\n\n"
        while not request.app.state.ending():
            now = await asyncio.to_thread(shelf.mark, key)
            if now != seen:
                seen, quiet_s = now, 0.0
                yield b"data: changed\n\n"
            elif (quiet_s := quiet_s + LOOK_S) > 15:
                quiet_s = 0.0
                yield b": still here\n\n"
            await asyncio.sleep(LOOK_S)

    return StreamingResponse(said(), media_type="text/event-stream")


def serve(
    folders: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 7864,
    browser: bool = False,
    play: bool = False,
    out: Path | None = None,
) -> None:
    """Shows the runs of some folders until it is interrupted; the first free port from `port` on. With `play`, episodes
    can be played again, and kept under `out`."""
    for folder in folders:
        if not folder.is_dir():
            raise RecordError(f"no folder '{folder}': train something first, or name the folder that holds your runs")
    local = _is_loopback(host)
    token = "" if local else secrets.token_urlsafe(16)
    bound = _bind(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{bound.getsockname()[1]}/" + (f"?token={token}" if token else "")
    reruns = Reruns(out) if play else None
    held = [*folders, *([out] if out is not None else ())]
    made = application(held, token=token, reruns=reruns) if local else application(held, ["*"], token, reruns)
    print(f"sojourn view: {address}  (Ctrl-C ends it)", flush=True)
    if browser:
        webbrowser.open(address)
    config = uvicorn.Config(made, log_level="warning", timeout_graceful_shutdown=1, lifespan="on")
    server = uvicorn.Server(config)
    made.state.ending = lambda: server.should_exit
    server.run(sockets=[bound])


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket on the port, or on one of the twenty after it."""
    trouble: OSError | None = None
    for number in range(port, port + 20) if port else (0,):
        try:
            return socket.create_server((host, number), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            trouble = error
    raise ConfigError(f"--host {host} --port {port} cannot be listened on ({trouble}): choose another")
