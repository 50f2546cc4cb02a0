"""Reads the requests of clients within limits, whatever they send."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from sojourn.gateway.hosts import is_local
from sojourn.gateway.requests import RequestError

DEEPEST = 200  # levels of a body


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds what a client may ask of the gateway: the bytes of a body, the seconds in which it must have sent it, and
    the requests that are answered at once, beyond which others are told to come again."""

    body_bytes: int = 64 << 20
    body_seconds: float = 60.0
    at_once: int = 1024


def require_local_origin(request: Request) -> None:
    """Raises `RequestError` for a request of a web page that is not served from this machine."""
    if (origin := request.headers.get("origin")) and not is_local(origin):
        raise RequestError(f"the page {origin[:100]!r} may not use this server", status=403, code="origin")


async def read_body(request: Request, limits: Limits) -> bytes:
    """Returns the body of a request, which has bounds in bytes and in time."""
    parts, size = [], 0
    too_large = RequestError(
        f"the body has more than {limits.body_bytes} bytes: expected fewer", status=413, code="too_large"
    )
    length = request.headers.get("content-length", "")
    if re.fullmatch("[0-9]{1,18}", length) and int(length) > limits.body_bytes:
        raise too_large
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > limits.body_bytes:
                    raise too_large
    except TimeoutError:
        raise RequestError(
            f"the body did not come within {limits.body_seconds:g} s", status=408, code="timeout"
        ) from None
    return b"".join(parts)


def has_left(request: Request) -> bool:
    """Returns whether the client of a request, whose body was read, has closed the connection; what comes next is
    looked for, not waited for."""
    coming = request.receive().__await__()
    try:
        next(coming)
    except StopIteration as come:
        return come.value["type"] == "http.disconnect"
    coming.close()
    return False


def json_object(body: bytes) -> Mapping[str, Any]:
    """Returns the object that a body is as JSON; raises `RequestError` for anything else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is no JSON ({str(error)[:80]}): expected an object") from None
    if not isinstance(value, dict):
        raise RequestError("the body is no JSON object: expected one")
    _require_shallow(value)
    return value


def _require_shallow(body: Mapping[str, Any]) -> None:
    """Refuses what is nested so deep that somebody who reads or writes it may fail."""
    level: list[Any] = [body]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise RequestError(f"the body has more than {DEEPEST} levels: expected fewer")
