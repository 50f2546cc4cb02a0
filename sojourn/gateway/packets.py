"""Sends what the server writes in one turn of the event loop at once, so that a reply takes one packet, not two; and
ends connections so that a client still reads its reply where the server answered before it had sent everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_HELD = 65536  # bytes, above which what is held is written, so that the client's pace is felt
LINGER_S = 2.0  # for which what a client still sends is dropped after its reply


class Joining(asyncio.Transport):
    """Holds what is written until the event loop has nothing else to do in this turn, and writes it at once then.

    A connection that is closed while its client may still be sending (`unread`) would be reset, and the client might
    never read its reply. So the server's side is closed first, and what comes from the other is dropped until that is
    closed, too, or for `LINGER_S`."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, unread: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__()
        self._transport, self._loop, self._unread = transport, loop, unread
        self._closed = False
        self._held: list[bytes | bytearray | memoryview] = []
        self._bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data or self._closed:
            return
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self._bytes += len(data)
        if self._bytes > MOST_HELD:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            held, self._held, self._bytes = self._held, [], 0
            self._transport.write(b"".join(held))

    def close(self) -> None:
        if self.is_closing():
            return
        self._closed = True
        self._flush()
        if self._unread() and self._transport.can_write_eof() and not self._transport.get_write_buffer_size():
            self._linger()
        else:
            self._transport.close()

    def _linger(self) -> None:
        transport = self._transport
        try:
            transport.write_eof()
        except OSError:  # the client has reset the connection
            transport.close()
            return
        self._loop.call_soon(transport.get_protocol().connection_lost, None)  # for it, this is the end
        transport.set_protocol(_Dropped())
        transport.resume_reading()
        self._loop.call_later(LINGER_S, transport.close)

    def is_closing(self) -> bool:
        return self._closed or self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()


class _Dropped(asyncio.Protocol):
    """Drops what comes."""


class Packets(H11Protocol):
    """Speaks HTTP as uvicorn does, and sends the head of a reply with the first part of its body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Joining(transport, self.loop, self._unread))

    def _unread(self) -> bool:
        """Returns whether the client may still be sending."""
        return self.conn.their_state not in (h11.IDLE, h11.CLOSED)
