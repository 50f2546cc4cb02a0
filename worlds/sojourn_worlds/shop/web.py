"""The shop as a web site: search form, results, item pages with option buttons, and a purchase by POST.

Every page is a function of its address, and every link's address is the state that the click leads to, so the site and
the text surface cannot disagree. A session has an unguessable path and no cookie. What it bought is kept here, where no
page can write it: the first purchase counts, and whoever opened the session computes its reward in Python. Pages run no
script.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, RedirectResponse, Response
    from starlette.routing import Route
except ModuleNotFoundError as error:
    from sojourn.errors import MissingExtraError

    raise MissingExtraError(
        f"the web surface of the shop needs the package '{error.name}', which is not installed: "
        "pip install 'sojourn-worlds[shop]'"
    ) from None

from sojourn.errors import InfrastructureError
from sojourn_worlds.shop.catalogue import Catalogue, Product
from sojourn_worlds.shop.search import Index
from sojourn_worlds.shop.store import LONGEST_QUERY, PARTS, SEARCH_PAGE, Link, State, Store, address

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
}
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<link rel="icon" href="data:,">
<style>body{{font:16px sans-serif;max-width:50em;margin:2em auto}}main div{{margin:.6em 0}}form{{display:inline}}
.button,button{{font:inherit;border:1px solid #888;border-radius:4px;padding:2px 8px;background:#eee;color:#000;
text-decoration:none}}.chosen{{background:#fc6}}</style></head><body>{search}<main>{lines}</main></body></html>"""
SEARCH = """<form role="search" action="{base}/search"><input name="q" maxlength="{longest}" aria-label="Search"
autofocus><input type="submit" value="Search"></form>"""


@dataclass
class Session:
    """The state of one shopper: where they are, and what they bought. `on_purchase` is called once, by the server."""

    state: State = SEARCH_PAGE
    purchase: State | None = None
    on_purchase: Callable[[], object] = lambda: None


class Site:
    """A store's pages and its sessions."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sessions: dict[str, Session] = {}
        self.app = Starlette(
            routes=[
                Route("/s/{session}/", self._page),
                Route("/s/{session}/search", self._page),
                Route("/s/{session}/done", self._done),
                Route("/s/{session}/item/{product}", self._page),
                Route("/s/{session}/item/{product}/buy", self._buy, methods=["POST"]),
                Route("/s/{session}/item/{product}/{part}", self._page),
            ]
        )
        self.app.state.site = self

    def enter(self) -> str:
        """Opens a session and returns its name; the name, under /s/, is all that a shopper needs to know."""
        name = secrets.token_urlsafe(16)
        self.sessions[name] = Session()
        return name

    def leave(self, name: str) -> None:
        self.sessions.pop(name, None)

    async def _page(self, request: Request) -> Response:
        session = self.sessions.get(request.path_params["session"])
        state = self.read(request.path_params, request.query_params)
        if session is None or state is None:
            return _missing()
        if session.purchase is not None:
            return RedirectResponse(f"/s/{request.path_params['session']}/done", 303)
        session.state = state
        return HTMLResponse(self.html(state, f"/s/{request.path_params['session']}"), headers=HEADERS)

    async def _buy(self, request: Request) -> Response:
        session = self.sessions.get(request.path_params["session"])
        state = self.read(request.path_params, request.query_params)
        if session is None or state is None:
            return _missing()
        if session.purchase is None:
            session.purchase = state
            session.on_purchase()
        return RedirectResponse(f"/s/{request.path_params['session']}/done", 303)

    async def _done(self, request: Request) -> Response:
        session = self.sessions.get(request.path_params["session"])
        if session is None or session.purchase is None:
            return _missing()
        return HTMLResponse(PAGE.format(title="Thank you", search="", lines="<div>Thank you.</div>"), headers=HEADERS)

    def read(self, path: Mapping[str, str], fields: Mapping[str, str]) -> State | None:
        """Returns the state that an address names, None where the store has no such page."""
        query, number = " ".join(fields.get("q", "").split())[:LONGEST_QUERY], fields.get("page", "1")
        if "q" not in fields:
            return SEARCH_PAGE if "product" not in path else None
        page = int(number) if number.isdecimal() and len(number) < 4 else 0
        if not 1 <= page <= max(1, len(self.store.pages(query))):
            return None
        if "product" not in path:
            return State(query, page)
        product = self.store.catalogue.by_id.get(path["product"])
        chosen = {name[7:]: value for name, value in fields.items() if name.startswith("option.")}
        part = next((part for part in PARTS if part.lower() == path.get("part")), "")
        if product is None or not _offers(product, chosen) or ("part" in path and not part):
            return None
        return State(query, page, product.id, tuple(sorted(chosen.items())), part)

    def html(self, state: State, base: str) -> str:
        """Returns the page of a state, with links below `base`."""
        lines = "\n".join(
            f"<div>{''.join(_piece(piece, state, base) for piece in line)}</div>" for line in self.store.lines(state)
        )
        # Browsers count some letters as two; what is too long all the same is cut where it is read.
        search = "" if state.page else SEARCH.format(base=base, longest=2 * LONGEST_QUERY)
        title = self.store.catalogue.by_id[state.product].title if state.product else state.query or "Shop"
        return PAGE.format(title=escape(title), search=search, lines=lines)


def app(catalogue: Catalogue, results_per_page: int = 5) -> Starlette:
    """Returns the site of a catalogue; `app.state.site.enter()` names a new session, at /s/<session>/."""
    return Site(Store(catalogue, Index(catalogue), results_per_page)).app


def _missing() -> Response:
    return HTMLResponse(PAGE.format(title="Not found", search="", lines="<div>Not found.</div>"), 404, headers=HEADERS)


def _offers(product: Product, chosen: Mapping[str, str]) -> bool:
    return all(value in product.options.get(name, ()) for name, value in chosen.items())


def _piece(piece: str | Link, state: State, base: str) -> str:
    if isinstance(piece, str):
        return escape(piece)
    label = escape(piece.label)
    if piece.to is None:
        action = escape(f"{base}/{address(state)}".replace("?", "/buy?", 1))
        return f'<form method="post" action="{action}"><button data-click="{label}">{label}</button></form>'
    href, look = escape(f"{base}/{address(piece.to)}"), "button chosen" if piece.chosen else "button"
    star = "*" if piece.chosen else ""
    return f'{star}<a role="button" class="{look}" data-click="{label}" href="{href}">{label}</a>'


class Server:
    """Serves an app in a thread of its own, on a free port of the loopback interface, or at a `local` socket; `stop`
    waits for a `start`."""

    def __init__(self, application: Starlette, local: socket.socket | None = None) -> None:
        config = uvicorn.Config(
            application, log_level="error", access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._socket = local or socket.socket()
        if local is None:
            self._socket.bind(("127.0.0.1", 0))
        name = self._socket.getsockname()
        self.url = name if local else f"http://127.0.0.1:{name[1]}"
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="shop", daemon=True
        )
        self._lock = threading.Lock()
        self._ended = False

    def start(self) -> None:
        with self._lock:
            if self._ended:
                raise InfrastructureError(f"the shop's server at {self.url} was stopped before it had started")
            self._thread.start()
            while not self._server.started:
                if not self._thread.is_alive():
                    raise InfrastructureError(
                        f"the shop's server at {self.url} ended while it started: see its log above"
                    )
                time.sleep(0.005)

    def stop(self) -> None:
        self._server.should_exit = True
        with self._lock:
            self._ended = True
            if self._thread.ident is not None:
                self._thread.join()
            self._socket.close()
