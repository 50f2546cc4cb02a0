"""The world of a program: as a server of tools (MCP) and over plain HTTP."""

import asyncio

import httpx
import pytest

from sojourn.gateway.bodies import Limits
from sojourn.gateway.offering import Offering
from sojourn.gateway.requests import RequestError
from sojourn.gateway.server import Gateway
from sojourn.gateway.sessions import Sessions
from sojourn.gateway.world_port import WorldPort
from sojourn.types import Message, Observation, Role, ToolCall
from tests.gateway_sessions import LOOK, user
from tests.program_worlds import SAY

SEEN = Observation((user("A hall."),), (Message(Role.SYSTEM, "Look."),), (LOOK,))


def client(port):
    def port_of(key):
        if key != "key":
            raise RequestError("no session of this key is open", status=404, code="no_session")
        return port

    routes = Offering(port_of, Limits(body_bytes=1000)).routes()
    transport = httpx.ASGITransport(Gateway(Sessions()).app(more=routes))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


async def mcp(http, method, parameters=None, **more):
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": parameters or {}, **more}
    return (await http.post("/s/key/mcp", json=body)).json()


async def answered(port, shown):
    """Takes the next action of a program, and answers it as its seat does."""
    action = await port.next_action()
    shown(action)
    return action


async def test_a_client_of_mcp_lists_the_tools_and_calls_one():
    port = WorldPort(SEEN)
    async with client(port) as http:
        begun = await mcp(http, "initialize", {"protocolVersion": "2025-03-26"})
        assert begun["result"]["protocolVersion"] == "2025-03-26"
        assert (await mcp(http, "initialize", {"protocolVersion": "1"}))["result"]["protocolVersion"] == "2025-06-18"
        note = await http.post("/s/key/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert note.status_code == 202
        assert (await http.get("/s/key/mcp")).status_code == 405
        listed = (await mcp(http, "tools/list"))["result"]["tools"]
        assert [(one["name"], one["inputSchema"]) for one in listed] == [
            (LOOK.name, LOOK.parameters),
            (SAY.name, SAY.parameters),
        ]
        call = {"name": "look", "arguments": {"at": "door"}, "_meta": {"claudecode/toolUseId": "toolu_1"}}
        told, action = await asyncio.gather(
            mcp(http, "tools/call", call), answered(port, lambda _: port.show(Observation((user("A door."),))))
        )
    assert told["result"] == {"content": [{"type": "text", "text": "A door."}], "isError": False}
    assert told["id"] == 7
    assert action.message.calls == (ToolCall("look", {"at": "door"}),)
    assert action.call_id == "toolu_1"
    assert port.observation.tools == (LOOK,)  # they stay, where an observation has none
    assert port.observation.system == SEEN.system


async def test_a_refused_action_is_an_error_of_the_tool():
    port = WorldPort(SEEN)
    async with client(port) as http:
        told, _ = await asyncio.gather(
            mcp(http, "tools/call", {"name": "say", "arguments": {"text": "up"}}),
            answered(port, lambda _: port.refuse("there is no up")),
        )
    assert told["result"] == {"content": [{"type": "text", "text": "there is no up"}], "isError": True}


@pytest.mark.parametrize(
    ("method", "parameters", "code", "words"),
    [
        ("tools/guess", {}, -32601, "no method"),
        ("tools/call", {"name": "fly"}, -32602, "no tool 'fly': expected one of look, say"),
        ("tools/call", {"name": "look", "arguments": [1]}, -32602, "expected an object"),
        ("tools/call", {"name": "say", "arguments": {}}, -32602, "expects the action as a string"),
    ],
)
async def test_what_mcp_does_not_have_is_an_error_of_its_own(method, parameters, code, words):
    async with client(WorldPort(SEEN)) as http:
        told = await mcp(http, method, parameters)
    assert told["error"]["code"] == code
    assert words in told["error"]["message"]


async def test_plain_http_shows_the_world_and_takes_actions():
    port = WorldPort(Observation((user("Which?"),), choices=("left", "right")))
    async with client(port) as http:
        seen = (await http.get("/s/key/observation")).json()
        listed = (await mcp(http, "tools/list"))["result"]["tools"]
        told, first = await asyncio.gather(
            http.post("/s/key/act", json={"text": "left", "call_id": "c1"}),
            answered(port, lambda _: port.show(Observation((user("Again?"),), tools=(LOOK,)))),
        )
        named, second = await asyncio.gather(
            http.post("/s/key/act", json={"name": "look", "arguments": {}}), answered(port, lambda _: port.close())
        )
        later = (await http.post("/s/key/act", json={"text": "left"})).json()
    assert seen["messages"] == [{"role": "user", "content": "Which?"}]
    assert seen["choices"] == ["left", "right"]
    assert listed[0]["name"] == "act"
    assert listed[0]["inputSchema"]["properties"]["text"]["enum"] == ["left", "right"]
    assert told.json() == {"messages": [{"role": "user", "content": "Again?"}], "refusal": None, "done": False}
    assert (first.message.text, first.call_id) == ("left", "c1")
    assert second.message.calls[0].name == "look"
    assert named.json()["done"]
    assert later == {"messages": [], "refusal": None, "done": True}


@pytest.mark.parametrize(
    ("path", "content", "headers", "status", "words"),
    [
        ("/s/other/act", b"{}", {}, 404, "no session"),
        ("/s/key/act", b"{}", {}, 400, "has no action"),
        ("/s/key/act", b"[1]", {}, 400, "no JSON object"),
        ("/s/key/act", b" " * 2000, {}, 413, "more than 1000 bytes"),
        ("/s/key/act", b"{}", {"Origin": "https://example.org"}, 403, "may not use"),
        ("/s/key/mcp", b"\xff", {}, 400, "no JSON"),
    ],
)
async def test_what_cannot_be_read_gets_one_clear_error(path, content, headers, status, words):
    async with client(WorldPort(SEEN)) as http:
        told = await http.post(path, content=content, headers=headers)
    assert told.status_code == status
    assert words in told.json()["error"]["message"]
