"""Equal requests at once: each has its own reply, also when it comes again, and the end of a session ends them all."""

from __future__ import annotations

import asyncio

import pytest

from sojourn.gateway.exchange import KEPT
from tests.gateway_sessions import asked, said, session, user

HELLO = asked(user("Hi"))


async def test_a_session_that_is_closed_samples_nothing_more_however_much_was_asked():
    gate = asyncio.Event()
    one, sampler = session(lambda prompt: said("Well."), wait=gate.wait)
    bodies = [b"same", b"same", *(f"{number}".encode() for number in range(KEPT + 2))]
    begun = [one.exchanges.begin(HELLO, body, retried=False) for body in bodies]
    await asyncio.sleep(0)
    assert one.running == len(bodies)
    one.close()
    gate.set()
    await asyncio.wait({exchange.task for exchange in begun})
    assert (one.running, one.turns, sampler.samples) == (0, [], [])
    assert all(exchange.task.cancelled() for exchange in begun)


async def test_who_comes_again_has_the_reply_of_the_request_whose_client_left():
    numbers = iter(range(9))
    one, _ = session(lambda prompt: said(f"reply {next(numbers)}"))
    first, second = (one.exchanges.begin(HELLO, b"same", retried=False) for _ in range(2))
    with pytest.raises(ConnectionError), first.answered():
        raise ConnectionError
    assert one.exchanges.begin(HELLO, b"same", retried=True) is first
    assert one.exchanges.begin(HELLO, b"same", retried=True) is second
    assert one.exchanges.begin(HELLO, b"same", retried=False) not in (first, second)
    assert one.counts["repeated_requests"] == 2
