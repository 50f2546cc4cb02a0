"""What is too long is refused before it is rendered, and what is sent again and again is held once."""

from __future__ import annotations

import pytest

from sojourn.gateway.requests import RequestError
from sojourn.types import Ending, Message, Role, Tool, ToolCall
from tests.gateway_sessions import LOOK, asked, said, session, user

LONG = "word " * 2000
CALL = ToolCall("look", {"at": [LONG]})
ANSWER = Message(Role.TOOL, "A door.", answers="look")


@pytest.mark.parametrize(
    "request_",
    [
        asked(user(LONG)),
        asked(user("Hi"), tools=[Tool("look", LONG, {"type": "object"})]),
        asked(user("Hi"), tools=[Tool("look", "", {"type": "object", "properties": {LONG: {}}})]),
        asked(user("Hi"), said("", "", CALL), ANSWER),
        asked(user("Hi"), said("Yes.", LONG), user("On.")),
    ],
    ids=["a message", "a tool", "the schema of a tool", "the arguments of a call", "a thought"],
)
async def test_all_texts_of_a_request_count(request_, monkeypatch):
    one, sampler = session(lambda prompt: said("a"), max_context=64)
    rendered = []
    monkeypatch.setattr(type(sampler.format), "open", lambda *given: rendered.append(given))
    with pytest.raises(RequestError, match=r"these messages have \d+ characters") as refused:
        await one.reply(request_)
    assert (refused.value.code, one.ending, rendered) == ("context_length_exceeded", Ending.TOKENS, [])
    with pytest.raises(RequestError, match=r"these messages have \d+ characters"):
        one.prompt_tokens(request_)
    assert not rendered


def sent(*messages: tuple[Role, str]):
    """Returns a request whose messages and tools are objects of its own, as they are read from a body."""
    return asked(*(Message(role, text) for role, text in messages), tools=[Tool(**vars(LOOK))])


async def test_a_conversation_that_goes_on_is_held_once():
    one, _ = session(lambda prompt: said("a"))
    history = [(Role.USER, "Hi")]
    for number in range(4):
        exchange = one.exchanges.begin(sent(*history), f"body {number}".encode(), retried=False)
        (reply,) = await exchange.replies()
        history += [(Role.ASSISTANT, reply.message.text), (Role.USER, f"On, {number}.")]
        assert (exchange.request.messages, exchange.request.tools) == ((), ())
    held = {id(message) for one in one.placement.recorded for message in one.messages}
    assert len(held) == len(history) - 1
    assert len({id(one.tools) for one in one.placement.recorded}) == 1
    assert [turn.parent for turn in one.turns] == [-1, 0, 1, 2]
