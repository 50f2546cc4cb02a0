"""Forks against a server of our own that speaks OpenEnv's protocol, and that fails in later sessions."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("websockets")

from playing import say
from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.http11 import Response

from sojourn.errors import InfrastructureError
from sojourn_worlds.adapters.openenv import OpenEnv

SCHEMA = {"action": {"type": "object", "properties": {"digit": {"type": "integer"}}, "required": ["digit"]}}


class Sessions:
    """Counts its open sessions; each shows the sum of its digits. From the second on it `drifts` or `breaks`."""

    def __init__(self, drifts: bool = False, breaks: bool = False) -> None:
        self.drifts, self.breaks, self.opened, self.open = drifts, breaks, 0, 0
        self.ended = asyncio.Event()  # one of them

    async def talk(self, connection) -> None:
        self.opened, self.open, total = self.opened + 1, self.open + 1, 0
        later = self.opened > 1
        try:
            async for text in connection:
                total += json.loads(text)["data"].get("digit", 0) + (self.drifts and later)
                seen = {"observation": {"sum": total, "metadata": {"session": self.opened}}, "reward": 0.0}
                failing = self.breaks and later and total > 0
                reply = {"type": "error", "data": {"code": "CRASH"}} if failing else {"type": "seen", "data": seen}
                await connection.send(json.dumps(reply))
        finally:
            self.open -= 1
            self.ended.set()

    async def declare(self, connection, request):
        if request.path == "/schema":
            body = json.dumps(SCHEMA).encode()
            return Response(200, "OK", Headers([("content-length", str(len(body)))]), body)
        return None


@asynccontextmanager
async def played(sessions: Sessions):
    """A play of the server's that has made one step."""
    async with serve(sessions.talk, "127.0.0.1", 0, process_request=sessions.declare) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        family = OpenEnv(url=f"http://127.0.0.1:{port}")
        env = family.make(family.tasks("train")[0])
        await env.start()
        await env.step("agent", say("act(3)"))
        yield env
        await env.close()


async def test_a_fork_comes_to_the_same_in_a_session_of_its_own():
    sessions = Sessions()
    async with played(sessions) as env:
        twin = await env.fork()
        assert twin.last_observation["sum"] == env.last_observation["sum"] == 3
        assert sessions.open == 2
        await twin.close()


@pytest.mark.parametrize(("fault", "message"), [("drifts", "does not follow its seed"), ("breaks", "CRASH")])
async def test_a_fork_that_fails_says_so_and_leaves_no_session(fault, message):
    sessions = Sessions(**{fault: True})
    async with played(sessions) as env:
        with pytest.raises(InfrastructureError, match=message):
            await env.fork()
        async with asyncio.timeout(20.0):
            await sessions.ended.wait()
        assert (sessions.opened, sessions.open) == (2, 1)
