"""Offers the world of a session to its program: as a server of tools (MCP), and over plain HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sojourn.gateway.bodies import Limits, json_object, read_body, require_local_origin
from sojourn.gateway.requests import Api, RequestError
from sojourn.gateway.server import CHAT, answering
from sojourn.gateway.world_port import Shown, WorldPort
from sojourn.types import Message, Role, Tool
from sojourn.version import VERSION

PROTOCOLS = ("2025-06-18", "2025-03-26", "2024-11-05")  # of MCP, the latest first
CALL_IDS = ("claudecode/toolUseId", "callId", "call_id")  # where clients tell which of the model's calls they carry out
NO_METHOD, BAD_PARAMETERS = -32601, -32602  # of JSON-RPC
PortOf = Callable[[str], WorldPort]


class _Answer(JSONResponse):
    """An answer in UTF-8. Half a surrogate pair, which a world may show and UTF-8 cannot say, is a question mark."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False).encode(errors="replace")


@dataclass(frozen=True)
class Offering:
    """Answers what programs ask of their worlds. `port_of` returns the world of a session by the session's key, and
    raises `RequestError` where it has none."""

    port_of: PortOf
    limits: Limits

    def routes(self) -> list[Route]:
        return [
            Route("/s/{session}/mcp", answering(CHAT, self._mcp), methods=["POST"]),
            Route("/s/{session}/observation", answering(CHAT, self._observation), methods=["GET"]),
            Route("/s/{session}/act", answering(CHAT, self._act), methods=["POST"]),
        ]

    def _port(self, request: Request) -> WorldPort:
        require_local_origin(request)
        return self.port_of(request.path_params["session"])

    async def _observation(self, api: Api, request: Request) -> Response:
        port = self._port(request)
        seen = port.observation
        return _Answer(
            {
                "system": [_told(message) for message in seen.system],
                "messages": [_told(message) for message in seen.messages],
                "tools": [_tool(tool, "parameters") for tool in seen.tools],
                "choices": list(seen.choices),
                "done": port.over,
            }
        )

    async def _act(self, api: Api, request: Request) -> Response:
        """Takes an action as `{"text": ...}` or `{"name": ..., "arguments": {...}}`, with the model's `call_id` where
        it is known."""
        port, body = self._port(request), json_object(await read_body(request, self.limits))
        if "name" in body:
            action = port.call(str(body["name"]), body.get("arguments", {}))
        elif isinstance(text := body.get("text"), str):
            action = Message(Role.ASSISTANT, text)
        else:
            raise RequestError('the body has no action: expected "text", or "name" and "arguments"')
        shown = await port.act(action, str(body.get("call_id") or ""))
        messages = [_told(message) for message in shown.messages]
        return _Answer({"messages": messages, "refusal": shown.refusal or None, "done": shown.done})

    async def _mcp(self, api: Api, request: Request) -> Response:
        port, body = self._port(request), json_object(await read_body(request, self.limits))
        if "id" not in body:
            return Response(status_code=202)  # a notification
        told = {"jsonrpc": "2.0", "id": body["id"]}
        parameters = body.get("params")
        try:
            found = await _answered(port, str(body.get("method")), parameters if isinstance(parameters, dict) else {})
        except RequestError as error:
            code = NO_METHOD if error.code == "no_method" else BAD_PARAMETERS
            return _Answer({**told, "error": {"code": code, "message": str(error)}})
        return _Answer({**told, "result": found})


async def _answered(port: WorldPort, method: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the result of a request of MCP, which keeps no state between requests."""
    if method == "initialize":
        asked = parameters.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in PROTOCOLS else PROTOCOLS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "sojourn", "version": VERSION},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [_tool(tool, "inputSchema") for tool in port.tools()]}
    if method != "tools/call":
        raise RequestError(f"there is no method {method!r:.60}: expected tools/list or tools/call", code="no_method")
    action = port.call(str(parameters.get("name")), parameters.get("arguments") or {})
    meta = parameters.get("_meta")
    known = meta if isinstance(meta, dict) else {}
    call_id = next((str(known[name]) for name in CALL_IDS if known.get(name)), "")
    return _result(await port.act(action, call_id))


def _result(shown: Shown) -> Mapping[str, Any]:
    return {"content": [{"type": "text", "text": shown.text}], "isError": bool(shown.refusal)}


def _told(message: Message) -> Mapping[str, Any]:
    return {"role": str(message.role), "content": message.text}


def _tool(tool: Tool, schema: str) -> Mapping[str, Any]:
    return {"name": tool.name, "description": tool.description, schema: dict(tool.parameters)}
