"""A reply that spells a call is text where the request has no tools, or wants none called; older calls are refused."""

from __future__ import annotations

import pytest

from sojourn.gateway.chat_completions import ChatCompletions
from sojourn.gateway.messages import Messages
from sojourn.gateway.requests import RequestError
from sojourn.gateway.responses import Responses
from sojourn.types import Message, Role, ToolCall
from tests.gateway_sessions import LOOK, asked, exact, said, session, user
from tests.gateway_streams import APIS, Client, events, telling

HELLO = [{"role": "user", "content": "Hi"}]
SPELLED = 'One writes <tool_call>{"name": "look", "arguments": {}}</tool_call> for a call.'


@pytest.mark.parametrize(("more", "called"), [({}, 0), ({"tools": [LOOK], "calls": False}, 0), ({"tools": [LOOK]}, 1)])
async def test_a_reply_has_calls_only_where_they_are_wanted(more, called):
    one, sampler = session(lambda prompt: SPELLED)
    (reply,) = await one.reply(asked(user("How?"), **more))
    assert len(reply.message.calls) == called
    if not called:
        assert (reply.message.text, reply.finish) == (SPELLED, "length")
    assert [call.name for call in one.turns[0].message.calls] == ["look"], "what was sampled is recorded as ever"
    await one.reply(asked(user("How?"), reply.message, user("Thanks."), **more))
    assert one.turns[1].parent == 0
    exact(one, sampler)


@pytest.mark.parametrize(
    ("api", "body", "none", "auto"),
    [
        (ChatCompletions(), {"messages": HELLO}, "none", "auto"),
        (Responses(), {"input": "Hi"}, "none", "required"),
        (Messages(), {"messages": HELLO, "max_tokens": 9}, {"type": "none"}, {"type": "any"}),
    ],
    ids=["chat", "responses", "messages"],
)
def test_each_api_may_say_that_no_tool_is_called(api, body, none, auto):
    read = [api.read({**body, **({"tool_choice": choice} if choice else {})}) for choice in (none, auto, None)]
    assert [one.calls for one in read] == [False, True, True]
    assert [one.unused for one in read] == [(), ("tool_choice",), ()]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"functions": [{"name": "look"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\].content"),
        ({"messages": [*HELLO, {"role": "assistant", "function_call": {"name": "look", "arguments": "{}"}}]},
         r"messages\[1\].function_call"),
    ],
)  # fmt: skip
def test_what_would_be_lost_is_refused(body, place):
    with pytest.raises(RequestError, match=f"^{place} is "):
        ChatCompletions().read({"messages": HELLO, **body})


def test_messages_that_say_nothing_where_that_is_allowed_are_read():
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said_nothing = {"role": "assistant", "content": None, "function_call": None, "tool_calls": [call]}
    body = {"messages": [*HELLO, said_nothing, {"role": "tool", "tool_call_id": "a", "content": None}]}
    assert ChatCompletions().read(body).messages[1:] == (
        said("", "", ToolCall("look", {}, "a")),
        Message(Role.TOOL, answers="a"),
    )


@pytest.mark.parametrize("name", APIS)
async def test_a_stream_tells_such_a_reply_as_the_text_that_it_is(name):
    api = APIS[name]
    found, one, _ = telling(lambda prompt: SPELLED)
    client = Client(found.app(), api.path, {**api.asked("Hi"), "tools": [], "stream": True})
    await client.task
    assert api.told(list(events(client.text))) == ("", SPELLED, [])
    assert one.delivered == {0}
