"""Answers of parallel calls are rendered in the order of the calls, in whatever order a client sends them."""

from __future__ import annotations

import pytest

from sojourn.types import Message, Role, ToolCall
from tests.gateway_sessions import LOOK, asked, exact, replies, said, session, user

CALLS = (ToolCall("look", {"at": "door"}), ToolCall("look", {"at": "wall"}), ToolCall("look", {"at": "roof"}))
SEEN = ("red", "white", "black")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
async def test_answers_are_told_by_the_ids_of_their_calls(order):
    one, sampler = session(replies(said("", "", *CALLS), said("I see."), said("Yes.")))
    (reply,) = await one.reply(asked(user("Look."), tools=[LOOK]))
    answers = [Message(Role.TOOL, seen, answers=call.id) for seen, call in zip(SEEN, reply.message.calls, strict=True)]
    sent = [answers[at] for at in order]
    (second,) = await one.reply(asked(user("Look."), reply.message, *sent, tools=[LOOK]))
    text = sampler.format.decode(sampler.prompts[1])
    assert text.index("red") < text.index("white") < text.index("black")
    again = answers if order != (0, 1, 2) else answers[::-1]  # it goes on in whatever order they come next time
    await one.reply(asked(user("Look."), reply.message, *again, second.message, user("Sure?"), tools=[LOOK]))
    assert [turn.parent for turn in one.turns] == [-1, 0, 1]
    exact(one, sampler)


async def test_answers_whose_calls_are_not_known_stay_where_they_are():
    one, sampler = session(lambda prompt: said("I see."))
    calls = (ToolCall("look", {}, "a"), ToolCall("look", {}, "b"))
    for ids in (("b", "other"), ("b", "other", "a"), ("other", "a")):
        answers = [Message(Role.TOOL, f"seen {id}", answers=id) for id in ids]
        await one.reply(asked(user("Look."), said("", "", *calls), *answers, tools=[LOOK]))
        text = sampler.format.decode(sampler.prompts[-1])
        places = [text.index(f"seen {id}") for id in ids]
        assert places == sorted(places)
