"""How sessions end: what is said of the end when requests overlap, what failed, and what is sampled still."""

import asyncio

import pytest

from sojourn.errors import InfrastructureError
from sojourn.gateway.requests import RequestError
from sojourn.types import Ending
from tests.gateway_sessions import asked, replies, said, session, user


async def under_way(one, sampler_wait, *requests):
    """Asks for replies, none of which ends before `sampler_wait` is set."""
    asking = [asyncio.create_task(one.reply(request)) for request in requests]
    for _ in range(10):
        await asyncio.sleep(0)
    sampler_wait.set()
    return await asyncio.gather(*asking, return_exceptions=True)


async def test_a_reply_that_was_under_way_takes_back_no_refusal():
    gate = asyncio.Event()
    one, _ = session(lambda prompt: said("x"), turns=2, wait=gate.wait)
    *_, refused = await under_way(one, gate, *(asked(user(name)) for name in "abc"))
    assert isinstance(refused, RequestError)
    assert len(one.turns) == 2
    assert one.ending is Ending.TURNS


async def test_to_count_tokens_ends_nothing():
    one, _ = session(lambda prompt: said("x"))
    await one.reply(asked(user("Hi")))
    with pytest.raises(RequestError, match="characters"):
        one.prompt_tokens(asked(user("x" * 1_000_000)))
    assert one.ending is None


async def test_a_failure_of_the_engine_stays_until_the_same_conversation_has_its_reply():
    gate, broken = asyncio.Event(), [True]

    def script(prompt):
        if "main" in prompt and broken[0]:
            raise InfrastructureError("the engine is gone")
        return said("x")

    one, _ = session(script, wait=gate.wait)
    failed, _ = await under_way(one, gate, asked(user("main")), asked(user("title")))
    assert isinstance(failed, RequestError)
    assert one.failure == "the engine is gone"
    await one.reply(asked(user("title")))
    assert one.failure == "the engine is gone", "another conversation has nothing to do with it"
    broken[0] = False
    await one.reply(asked(user("main")))
    assert not one.failure


@pytest.mark.parametrize(("error", "words"), [(TimeoutError(), "TimeoutError"), (asyncio.CancelledError(), "Cancel")])
async def test_a_failure_of_the_engine_without_words_is_one(error, words):
    def script(prompt):
        raise error

    one, _ = session(script)
    with pytest.raises((TimeoutError, RequestError)):
        await one.reply(asked(user("Hi")))
    assert words in one.failure


async def test_what_was_refused_as_the_server_was_busy_is_a_failure_until_a_later_reply():
    one, _ = session(lambda prompt: said("x"))
    one.refuse_as_busy(RequestError("as many as this server answers at once", status=503, code="busy"))
    assert one.failure == "as many as this server answers at once"
    await one.reply(asked(user("Hi")))
    assert not one.failure


async def test_a_session_that_is_closed_samples_no_further():
    one, sampler = session(replies(said("x")), wait=asyncio.Event().wait)
    exchange = one.exchanges.begin(asked(user("Hi")), b"{}", retried=False)
    waiting = asyncio.create_task(exchange.replies())
    await asyncio.sleep(0.01)
    one.close()
    with pytest.raises(RequestError, match="its episode is over"):
        await waiting
    assert exchange.failed
    with pytest.raises(RequestError, match="this session is closed: its episode is over"):
        await one.reply(asked(user("Once more")))
    assert (one.running, sampler.samples) == (0, [])


async def test_a_turn_acted_in_the_state_of_its_first_action():
    one, _ = session(lambda prompt: said("x"))
    await one.reply(asked(user("Hi")))
    for state in ("before", "between"):
        one.add_reward(0, 0.5, {}, state)
    assert (one.turns[0].reward, one.turns[0].state) == (1.0, "before")
