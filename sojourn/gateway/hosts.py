"""Which hosts and origins may use the gateway: a page of another site that a browser shows may not, even where it has
made its own name lead to this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sojourn.gateway.requests import RequestError

LOCAL = ("localhost", "127.0.0.1", "::1", "[::1]")
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/\s]+)(?::\d{1,5})?")


@dataclass(frozen=True)
class KnownHosts:
    """Passes on requests whose `Host` header is one of `hosts` ("*": any; "*.name": any below a name), and answers all
    others with what `refuse` makes of the path and the error."""

    app: ASGIApp
    hosts: Sequence[str]
    refuse: Callable[[str, RequestError], Response]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._knows(host_of(Headers(scope=scope).get("host", ""))):
            error = RequestError("this server does not answer to that name of a host", status=403, code="host")
            await self.refuse(scope["path"], error)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _knows(self, host: str) -> bool:
        return any(
            one in ("*", host) or (one.startswith("*.") and host.endswith(one[1:])) for one in self.hosts if host
        )


def host_of(header: str) -> str:
    """Returns the name of a host without its port; empty where it is none."""
    found = HOST.fullmatch(header)
    return found[1].lower() if found else ""


def is_local(origin: str) -> bool:
    """Returns whether an `Origin` header names a page of this machine."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return origin == f"{parts.scheme}://{parts.netloc}" and host_of(parts.netloc) in LOCAL
