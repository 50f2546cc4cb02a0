"""Serves the task pages on a free port of 127.0.0.1: files of one folder, by GET, each page with its policy.

It is a protocol on the running event loop rather than `http.server`: no thread and no task outlives an episode,
although Chromium keeps its connections open.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sojourn_worlds.miniwob.policy import Policy, policy_of

MAX_REQUEST_BYTES = 65536
MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n"


class PagesServer:
    def __init__(self, folder: Path) -> None:
        self.url = ""
        self._folder = folder.resolve()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Transport] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self._answer, self._open), "127.0.0.1", 0)
        self.url = f"http://{self.address}"

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def policy(self, page: str) -> Policy:
        """Returns the policy of a task page by its name."""
        return _policy(self._folder, f"/miniwob/{page}.html", self.url)

    def _answer(self, target: str) -> bytes | None:
        return _answer(self._folder, target, self.url)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for transport in list(self._open):
            transport.abort()


class _Connection(asyncio.Protocol):
    """One connection of the browser: it answers requests in order, and stays open."""

    def __init__(self, answer: Callable[[str], bytes | None], opened: set[asyncio.Transport]) -> None:
        self._respond = answer
        self._opened = opened
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._opened.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            request, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            self._answer(request.split(b"\r\n", 1)[0].decode("latin-1").split(" "))
        if len(self._buffer) > MAX_REQUEST_BYTES:
            self._transport.abort()

    def _answer(self, request_line: list[str]) -> None:
        response = self._respond(request_line[1]) if len(request_line) == 3 and request_line[0] == "GET" else None
        self._transport.write(response or MISSING)


@lru_cache(maxsize=512)
def _answer(folder: Path, target: str, url: str) -> bytes | None:
    """Returns the HTTP answer with a file below the folder, None where there is none; files never change while a run
    lasts.
    """
    path_in_url = unquote(urlsplit(target).path)
    path = (folder / path_in_url.lstrip("/")).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        return None
    kind, body = mimetypes.guess_type(path.name)[0] or "application/octet-stream", path.read_bytes()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}{'; charset=utf-8' if kind.startswith('text/') else ''}\r\n"
    if kind == "text/html":
        head += f"Content-Security-Policy: {_policy(folder, path_in_url, url).header}\r\n"
    return f"{head}Content-Length: {len(body)}\r\nCache-Control: max-age=86400\r\n\r\n".encode() + body


@lru_cache(maxsize=512)
def _policy(folder: Path, path_in_url: str, url: str) -> Policy:
    return policy_of(folder, path_in_url, url)
