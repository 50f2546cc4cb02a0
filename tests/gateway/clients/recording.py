"""Keeps the requests that a server gets, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

APIS = ("/chat/completions", "/responses", "/messages")
FAILED = (b'"type": "error"', b'"type": "response.failed"', b'data: {"error"')


@dataclass
class Exchange:
    """Holds one request and its answer."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytearray = field(default_factory=bytearray)
    status: int = 0
    answer: bytearray = field(default_factory=bytearray)

    @property
    def asks(self) -> bool:
        """Says whether it asks for a reply of the model."""
        return self.method == "POST" and self.path.endswith(APIS)

    @property
    def failed(self) -> bool:
        return self.status != 200 or any(sign in self.answer for sign in FAILED)

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


@dataclass
class Recorder:
    """Passes requests on to an application, and keeps them in the order in which they came."""

    app: ASGIApp
    exchanges: list[Exchange] = field(default_factory=list[Exchange])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        exchange = Exchange(scope["method"], scope["path"], headers)
        self.exchanges.append(exchange)

        async def received() -> Message:
            message = await receive()
            exchange.body += message.get("body", b"")
            return message

        async def sent(message: Message) -> None:
            exchange.status = message.get("status", exchange.status)
            exchange.answer += message.get("body", b"")
            await send(message)

        await self.app(scope, received, sent)
        return None
