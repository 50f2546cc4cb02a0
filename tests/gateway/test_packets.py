"""What the server writes in one turn of the event loop goes out at once; what comes later does not wait for more."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from sojourn.gateway import packets
from sojourn.gateway.packets import MOST_HELD, Joining, Packets

REQUEST = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"


class Written(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.packets: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.packets.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def connected(app: ASGIApp) -> tuple[Packets, Written]:
    config = uvicorn.Config(app, http=Packets, lifespan="off", ws="none", log_level="error")
    config.load()
    transport = Written()
    protocol = Packets(config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(transport)
    return protocol, transport


async def turns(number: int = 10) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_reply_is_one_packet() -> None:
    protocol, transport = connected(PlainTextResponse("a reply"))
    for _ in range(2):  # the connection is kept
        protocol.data_received(REQUEST)
        await turns()
    assert len(transport.packets) == 2
    for packet in transport.packets:
        head, _, body = packet.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert body == b"a reply"


async def test_a_stream_does_not_wait_for_what_comes_later() -> None:
    more = asyncio.Event()

    async def parts():
        await more.wait()
        yield "first"
        await asyncio.sleep(0)
        yield "second"

    protocol, transport = connected(StreamingResponse(parts()))
    protocol.data_received(REQUEST)
    await turns()
    assert len(transport.packets) == 1
    assert transport.packets[0].endswith(b"\r\n\r\n")  # the head alone
    more.set()
    await turns()
    first, second = (next(n for n, packet in enumerate(transport.packets) if word in packet)
                     for word in (b"first", b"second"))  # fmt: skip
    assert 0 < first < second


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[int]:
    """Serves an application, and yields its port."""
    server = uvicorn.Server(uvicorn.Config(app, http=Packets, lifespan="off", ws="none", log_level="error"))
    bound = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve([bound]))
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    try:
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        await asyncio.wait_for(running, 10)
        bound.close()


@pytest.mark.parametrize("fields", [b"content-length: 1000000\r\n", b"content-length: 3\r\n", b"no field\r\n"])
async def test_a_client_that_is_still_sending_reads_its_reply(fields: bytes) -> None:
    """What it sends after the server has closed would reset the connection, before the client has read."""
    async with served(PlainTextResponse("too large", status_code=413)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n" + fields + b"\r\n")
        for _ in range(3):
            writer.write(b"x" * 100_000)
            await asyncio.sleep(0.1)
        reply = await reader.read()
        assert reply.startswith(b"HTTP/1.1 400" if fields == b"no field\r\n" else b"HTTP/1.1 413")
        writer.close()


async def sent_for_ever(writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(10):
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)


async def test_a_client_that_never_ends_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "LINGER_S", 0.2)
    async with served(PlainTextResponse("too large", status_code=413)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-length: 1000000\r\n\r\n")
        assert (await reader.read()).endswith(b"too large")
        with pytest.raises(ConnectionError):
            await sent_for_ever(writer)


async def test_what_is_held_is_written_before_the_end_and_when_it_is_much() -> None:
    transport = Written()
    joining = Joining(transport, asyncio.get_running_loop())
    joining.write(b"x" * MOST_HELD)
    assert transport.packets == []
    joining.write(b"y")
    assert transport.packets == [b"x" * MOST_HELD + b"y"]
    await turns()
    joining.writelines([b"a", b"", b"b"])
    assert len(transport.packets) == 1
    joining.close()
    assert (transport.packets[1:], transport.closed) == ([b"ab"], True)
    joining.write(b"too late")
    await turns()
    assert len(transport.packets) == 2
