"""A session that is forgotten and made anew repeats none of the samples that it had before."""

from __future__ import annotations

import httpx

from sojourn.serving.opening import Served
from sojourn.serving.server import Address, Server, Service
from sojourn.types import SamplingParams
from tests.gateway_sessions import OddSampler, renderer, said

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


async def seeds(paths: list[str], session_turns: int = 1000, **bounds: int) -> list[int]:
    """Returns the seed of each reply, where the same is asked at these paths one after another."""
    sampler = OddSampler(renderer(), lambda prompt: said("Yes."))
    served = Served(engine=sampler, renderer=sampler.format, max_context=4096)
    server = Server(served, Service(names=("m",), params=SamplingParams(8), seed=1, **bounds), Address())
    server.sessions.session_turns = session_turns
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app), base_url="http://127.0.0.1") as http:
        for path in paths:
            assert (await http.post(f"{path}/v1/chat/completions", json=HELLO)).status_code == 200
    return [params.seed for params in sampler.params]


async def test_requests_without_a_session_never_have_the_samples_of_earlier_ones():
    found = await seeds([""] * 12, session_turns=2)
    assert len(set(found)) == 12
    assert found == await seeds([""] * 12, session_turns=2), "--seed decides them"
    assert found[:3] == await seeds([""] * 3)


async def test_a_session_that_others_pushed_out_has_new_samples_when_it_comes_again():
    paths = ["/s/a", "/s/b", "/s/c", "/s/a"]
    first, *_, again = await seeds(paths, sessions=2)
    assert first != again
    kept, *_, next = await seeds(paths)
    assert (kept, next != again) == (first, True)
