"""Asks a browser at its Unix socket, by plain HTTP or by one command of the Chrome DevTools Protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

HEAD = "GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n"
UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n"
NO_MASK = bytes(4)
SHORT, MEDIUM = 126, 127  # lengths of frames that stand for two, and eight, bytes with the length


@asynccontextmanager
async def _connected(path: str) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield reader, writer
    finally:
        writer.close()


async def get(path: str, what: str) -> Any:
    """Returns the JSON at an address of the browser, such as "/json/list"; raises `OSError` where it gives none."""
    async with _connected(path) as (reader, writer):
        writer.write(HEAD.format(what, "").encode())
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length:\s*(\d+)", head)
            if b" 200 " not in head or length is None:
                raise ConnectionError(f"the browser answers {head[:60]!r}")
            return json.loads(await reader.readexactly(int(length[1])))
        except (EOFError, ValueError) as error:
            raise ConnectionError(f"the browser gives no JSON: {error}") from None


async def evaluate(path: str, expression: str) -> Any:
    """Returns the value of an expression of JavaScript in the first page; None where it has none, or there is no page.
    Raises `OSError` where the browser gives no answer."""
    pages = [one for one in await get(path, "/json/list") if one["type"] == "page"]
    if not pages:
        return None
    asked = {"id": 1, "method": "Runtime.evaluate", "params": {"expression": expression, "returnByValue": True}}
    async with _connected(path) as (reader, writer):
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(HEAD.format(f"/devtools/page/{pages[0]['id']}", UPGRADE.format(key)).encode())
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            data = json.dumps(asked).encode()
            writer.write(bytes([0x81, 0x80 | SHORT]) + len(data).to_bytes(2, "big") + NO_MASK + data)
            found = json.loads(await _frame(reader)) if b" 101 " in head else {}
        except (EOFError, ValueError) as error:
            raise ConnectionError(f"the browser gives no value: {error}") from None
    return found.get("result", {}).get("result", {}).get("value")


async def _frame(reader: asyncio.StreamReader) -> bytes:
    length = (await reader.readexactly(2))[1]
    more = {SHORT: 2, MEDIUM: 8}.get(length, 0)
    length = int.from_bytes(await reader.readexactly(more), "big") if more else length
    return await reader.readexactly(length)
