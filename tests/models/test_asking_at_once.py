"""Many ask a model behind an endpoint at once: how many requests there are, and that none is sent twice."""

from __future__ import annotations

import asyncio
import threading

import pytest
from judge_server import reply

from sojourn.errors import InfrastructureError
from sojourn.models.answers import AnswerStore
from sojourn.models.asked_endpoint import EndpointModel
from sojourn.models.spec import ServedModel
from sojourn.types import Message, Role
from tests.envs.loopback import Raw, answered

QUESTION = (Message(Role.USER, "Why?"),)
ASK = {"max_tokens": 5, "temperature": 0.5, "seed": 3}


def model(url: str, concurrency: int) -> EndpointModel:
    return EndpointModel("referee", ServedModel(base_url=url, model="big", concurrency=concurrency), AnswerStore())


async def test_a_request_that_nobody_waits_for_is_one_of_those_at_once():
    """As when many plays are stopped: their requests go on, and no further ones are sent beside them."""
    asked_for, go_on = threading.Event(), threading.Event()

    def slowly(path, body):
        asked_for.set()
        go_on.wait()
        return reply("Because.")

    with answered(slowly) as (url, requests):
        made = model(url, 1)
        left = asyncio.create_task(made.ask(QUESTION, **ASK))
        await asyncio.to_thread(asked_for.wait)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        other = asyncio.create_task(made.ask(QUESTION, **{**ASK, "seed": 4}))
        await asyncio.sleep(0.3)
        assert len(requests) == 1
        go_on.set()
        assert (await other).text == "Because."
    assert len(requests) == 2


async def test_after_a_failure_one_of_those_who_wait_asks_for_all():
    """Whoever comes while that one waits for its turn shares the answer, too, and nothing is paid for twice."""
    go_on = {3: threading.Event(), 4: threading.Event()}
    arrived = threading.Semaphore(0)

    def answer(path, body):
        sent.append(body["seed"])
        arrived.release()
        go_on[body["seed"]].wait()
        return Raw(400, "{}") if len(sent) == 1 else reply("Because.")

    sent: list[int] = []
    with answered(answer) as (url, _):
        made = model(url, 1)
        first, second = (asyncio.create_task(made.ask(QUESTION, **ASK, asker=name)) for name in "ab")
        await asyncio.to_thread(arrived.acquire)
        other = asyncio.create_task(made.ask(QUESTION, **{**ASK, "seed": 4}))
        await asyncio.sleep(0)
        go_on[3].set()
        with pytest.raises(InfrastructureError):
            await first
        await asyncio.to_thread(arrived.acquire)  # the other's turn, after which is the second's
        third = asyncio.create_task(made.ask(QUESTION, **ASK, asker="c"))
        await asyncio.sleep(0)
        go_on[4].set()
        found = await asyncio.gather(other, second, third)
    assert [one.text for one in found] == ["Because."] * 3
    assert sent == [3, 4, 3]
