"""Sends what the server writes in one turn of the event loop at once, so that a reply takes one packet, not two."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_HELD = 65536  # bytes, above which what is held is written, so that the client's pace is felt


class Joining(asyncio.Transport):
    """Holds what is written until the event loop has nothing else to do in this turn, and writes it at once then."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport, self._loop = transport, loop
        self._held: list[bytes | bytearray | memoryview] = []
        self._bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data:
            return
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self._bytes += len(data)
        if self._bytes > MOST_HELD:
            self._flush()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def _flush(self) -> None:
        if self._held:
            held, self._held, self._bytes = self._held, [], 0
            self._transport.write(b"".join(held))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()


class Packets(H11Protocol):
    """Speaks HTTP as uvicorn does, and sends the head of a reply with the first part of its body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Joining(transport, self.loop))
