"""A session with an MCP server, by the SDK 1.x or 2.x: it starts the server, lists its tools, calls them, and ends
it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sojourn.envs.about import require_module
from sojourn.envs.variables import fill_variables, mask_variables
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.secrets import REFERENCE, filled
from sojourn.types import Tool
from sojourn_worlds.adapters import guard


class Server(Protocol):
    """Says how a server is reached: by a command that is run for each episode, or by an address."""

    @property
    def command(self) -> Sequence[str]: ...
    @property
    def environment(self) -> Mapping[str, str]: ...
    @property
    def url(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def timeout_s(self) -> float: ...


class Called(NamedTuple):
    """A call that was made, and its result."""

    name: str
    arguments: Mapping[str, Any]
    text: str
    error: bool


class Session:
    """A connection to a server, kept by a task of its own: its callers may come and go, and be cancelled."""

    def __init__(self, world: Server, values: Mapping[str, Any]) -> None:
        self.world, self.values = world, values
        self.instructions = ""
        self.folder = Path(os.devnull)
        self.client: Any = None
        self.host: asyncio.Task[None] | None = None
        self.ready: asyncio.Future[list[Tool]] | None = None
        self.ended = asyncio.Event()
        self.scope: Any = None
        self.errors: Any = None  # the server's standard error, while it runs
        self.last_words = ""

    async def open(self) -> list[Tool]:
        """Returns the server's tools, once it runs and has listed them."""
        require_module("mcp", "sojourn-worlds[mcp]", "mcp")
        self.scope = require_module("anyio", "sojourn-worlds[mcp]", "mcp").CancelScope()
        self.ready = asyncio.get_running_loop().create_future()
        self.host = asyncio.create_task(self._host(), name="mcp session")
        try:
            async with asyncio.timeout(self.world.timeout_s):
                return await asyncio.shield(self.ready)
        except TimeoutError:
            raise InfrastructureError(
                f"mcp: {self._where()} did not start within {self.world.timeout_s:g} s{self._stderr_tail()}"
            ) from None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Called:
        """Calls a tool; an error that the tool itself reports is a result."""
        try:
            async with asyncio.timeout(self.world.timeout_s):
                result = await self.client.call_tool(name, dict(arguments))
        except TimeoutError:
            raise InfrastructureError(f"mcp: {name} did not answer within {self.world.timeout_s:g} s") from None
        except Exception as error:  # of the SDK or of its transports: the server is gone, or speaks another language
            raise InfrastructureError(f"mcp: calling {name} failed ({_leaf(error)}){self._stderr_tail()}") from error
        return Called(
            name, dict(arguments), self._hidden(text_of(result)), bool(_either(result, "is_error", "isError"))
        )

    async def close(self) -> None:
        self.ended.set()
        if self.host is not None:
            if self.ready is not None and not self.ready.done():
                self.scope.cancel()
            await asyncio.wait({self.host})
            if self.ready is not None and self.ready.done() and not self.ready.cancelled():
                self.ready.exception()  # was told to whoever opened
        if self.folder != Path(os.devnull):
            shutil.rmtree(self.folder, ignore_errors=True)

    async def _host(self) -> None:
        from mcp import ClientSession

        assert self.ready is not None
        try:
            with self.scope:
                async with self._streams() as streams, ClientSession(streams[0], streams[1]) as client:
                    self.instructions = self._hidden((await client.initialize()).instructions or "")
                    tools = [
                        Tool(tool.name, self._hidden(tool.description), self._without_keys(tool.parameters))
                        for tool in await _tools(client)
                    ]
                    self.client = client
                    if not self.ready.done():
                        self.ready.set_result(tools)
                    await self.ended.wait()
        except Exception as error:  # of the SDK or of its transports
            if not self.ready.done():
                message = f"mcp: {self._where()} cannot be used ({_leaf(error)}){self._stderr_tail()}"
                self.ready.set_exception(
                    error if isinstance(error, ConfigError) else InfrastructureError(message)
                )  # what fails while it is shut down concerns nobody
        finally:
            if not self.ready.done():
                self.ready.cancel()

    @contextlib.asynccontextmanager
    async def _streams(self) -> AsyncIterator[Any]:
        if self.world.url:
            async with _http(self.world) as streams:
                yield streams
            return
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        self.folder = Path(tempfile.mkdtemp(prefix="sojourn-mcp-"))
        values = {**{key: str(value) for key, value in self.values.items()}, "folder": str(self.folder)}
        guarded = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(self.folder)]
        command = [*guarded, *(_filled(part, values) for part in self.world.command)]
        environment = {key: _filled(value, values, REFERENCE) for key, value in self.world.environment.items()}
        server = StdioServerParameters(command=command[0], args=command[1:], env=environment)
        with tempfile.TemporaryFile("w+") as errors:
            self.errors = errors
            try:
                async with stdio_client(server, errlog=errors) as streams:
                    yield streams
            finally:
                self.last_words = self._stderr_tail()

    def _without_keys(self, value: Any) -> Any:
        """Returns JSON without the keys that the server was given, in texts however deep."""
        if isinstance(value, dict):
            return {self._hidden(key): self._without_keys(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._without_keys(item) for item in value]
        return self._hidden(value) if isinstance(value, str) else value

    def _hidden(self, text: str) -> str:
        """Returns a text of the server without the keys that it was given."""
        return mask_variables(text, self.world.url, *self.world.headers.values(), *self.world.environment.values())

    def _where(self) -> str:
        return self.world.url or f"the command {' '.join(self.world.command)}"

    def _stderr_tail(self) -> str:
        """Returns the last line that the server wrote to its standard error."""
        if self.errors is None or self.errors.closed:
            return self.last_words
        self.errors.seek(0)
        lines = [line for line in self.errors.read()[-4_000:].splitlines() if line.strip()]
        return f": {lines[-1].strip()}" if lines else ""


@contextlib.asynccontextmanager
async def _http(world: Server) -> AsyncIterator[Any]:
    from mcp.client import streamable_http

    url, headers = filled(world.url), fill_variables(world.headers)
    if (old := getattr(streamable_http, "streamablehttp_client", None)) is not None:  # SDK 1.x
        async with old(url, headers=headers, timeout=world.timeout_s) as streams:
            yield streams
        return
    import httpx2

    async with (
        httpx2.AsyncClient(headers=headers, timeout=world.timeout_s, follow_redirects=True) as http,
        streamable_http.streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams


async def _tools(client: Any) -> list[Tool]:
    """Returns all tools of a server, page by page."""
    import mcp.types as sdk

    tools: list[Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(params=sdk.PaginatedRequestParams(cursor=cursor) if cursor else None)
        for tool in page.tools:
            schema = _either(tool, "input_schema", "inputSchema")
            tools.append(Tool(tool.name, inspect.cleandoc(tool.description or ""), schema))
        cursor = _either(page, "next_cursor", "nextCursor")
        if not cursor:
            return tools


def text_of(result: Any) -> str:
    """Returns a tool's result as text, and names parts of it that are no text."""
    parts = [getattr(block, "text", None) or f"[{block.type}]" for block in result.content]
    structured = _either(result, "structured_content", "structuredContent")
    if not parts and structured is not None:
        return json.dumps(structured, ensure_ascii=False)
    return "\n".join(parts) or "done"


def _either(value: Any, new: str, old: str) -> Any:
    """Returns a field by its name in SDK 2.x, or in 1.x."""
    return getattr(value, new) if hasattr(value, new) else getattr(value, old, None)


def _filled(text: str, values: Mapping[str, str], variable: re.Pattern[str] | None = None) -> str:
    """Returns the text with each `{key}` replaced by its value, and our environment variables where they are asked for.

    What is put in is not expanded again, so that no task can name a variable of ours.
    """
    keys = "|".join(re.escape(f"{{{key}}}") for key in values)

    def value(match: re.Match[str]) -> str:
        return values[match[0][1:-1]] if match[0].startswith("{") else filled(match[0])

    return re.sub(f"{variable.pattern}|{keys}" if variable else keys, value, text)


def _leaf(error: BaseException) -> str:
    """Returns the first cause of a group of errors."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
