"""Serves the task pages on a free port of 127.0.0.1: files of one folder, by GET, and nothing else.

A protocol on the running event loop rather than `http.server`: no thread and no task outlives an episode, although
Chromium keeps its connections open.
"""

from __future__ import annotations

import asyncio
import mimetypes
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

LONGEST_REQUEST = 65536


class PagesServer:
    def __init__(self, folder: Path) -> None:
        self.url = ""
        self._folder = folder.resolve()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Transport] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self._folder, self._open), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for transport in list(self._open):
            transport.abort()


class _Connection(asyncio.Protocol):
    """One connection of the browser: answers requests in order, and stays open."""

    def __init__(self, folder: Path, opened: set[asyncio.Transport]) -> None:
        self._folder = folder
        self._opened = opened
        self._waiting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._opened.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        while b"\r\n\r\n" in self._waiting:
            request, _, self._waiting = self._waiting.partition(b"\r\n\r\n")
            self._answer(request.split(b"\r\n", 1)[0].decode("latin-1").split(" "))
        if len(self._waiting) > LONGEST_REQUEST:
            self._transport.abort()

    def _answer(self, words: list[str]) -> None:
        found = _read(self._folder, words[1]) if len(words) == 3 and words[0] == "GET" else None
        status, (kind, body) = ("200 OK", found) if found else ("404 Not Found", ("text/plain", b""))
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        self._transport.write(f"{head}Cache-Control: max-age=86400\r\n\r\n".encode() + body)


@lru_cache(maxsize=512)
def _read(folder: Path, target: str) -> tuple[str, bytes] | None:
    """The media type and content of a file below the folder, or None; the files never change while a run lasts."""
    path = (folder / unquote(urlsplit(target).path).lstrip("/")).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        return None
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return kind + ("; charset=utf-8" if kind.startswith("text/") else ""), path.read_bytes()
