"""A reply in a context that is rendered anew has the tokens of its own turn, not of another that said the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sojourn.types import Message, Role, ToolCall
from tests.gateway_sessions import LOOK, asked, exact, replies, said, session, user

LOOKS = ToolCall("look", {"at": "door"})
NEW = Message(Role.SYSTEM, "It is 12:01.")


def answer(text: str, call: ToolCall) -> Message:
    return Message(Role.TOOL, text, answers=call.id)


async def test_equal_replies_of_one_conversation_keep_their_own_thoughts():
    one, sampler = session(replies(said("ok", "red"), said("ok", "blue"), said("end", "x")), thinking=True)
    await one.reply(asked(user("a")))
    await one.reply(asked(user("a"), said("ok"), user("b")))
    await one.reply(asked(NEW, user("a"), said("ok"), user("b"), said("ok"), user("c")))
    prompt = sampler.format.decode(sampler.prompts[-1])
    assert 0 < prompt.index("red") < prompt.index("b<|im_end|>") < prompt.index("blue")
    exact(one, sampler)


@pytest.mark.parametrize("first", ["Hello", "Is it blue?"])
async def test_the_thought_of_another_persons_reply_is_in_no_prompt(first):
    """Of one person's conversation is asked what another had answered otherwise, or after another question."""
    one, sampler = session(lambda prompt: said("Yes.", f"a secret of {len(sampler.prompts)}"), key="", thinking=True)
    await one.reply(asked(user("Hello")))
    await one.reply(asked(user("Hello"), said("Yes."), user("My PIN is 4711, may I?")))
    for more in ((), (user("And grass?"), said("Yes."))):
        await one.reply(asked(user(first), said("No."), user("Is it blue?"), said("Yes."), *more, user("Sure?")))
        prompt = sampler.format.decode(sampler.prompts[-1])
        assert "secret" not in prompt
        assert "Yes." in prompt


async def test_equal_calls_are_told_apart_by_their_ids_else_by_their_order():
    one, sampler = session(
        replies(said("", "first", LOOKS), said("", "second", LOOKS), said("x", "y"), said("x", "y")), thinking=True
    )
    history = [user("Look twice.")]
    for text in ("A door.", "A wall."):
        (reply,) = await one.reply(asked(*history, tools=[LOOK]))
        history += [reply.message, answer(text, reply.message.calls[0])]
    bare = [replace(message, thought="", calls=tuple(LOOKS for _ in message.calls)) for message in history]
    await one.reply(asked(NEW, *bare, tools=[LOOK]))
    prompt = sampler.format.decode(sampler.prompts[-1])
    assert prompt.index("first") < prompt.index("A door.") < prompt.index("second") < prompt.index("A wall.")
    await one.reply(asked(NEW, history[0], *history[3:], tools=[LOOK]))  # the older call was left out
    prompt = sampler.format.decode(sampler.prompts[-1])
    assert "first" not in prompt
    assert "second" in prompt


async def test_replies_are_of_one_conversation_where_one_has_them():
    """The first question was asked again later: that reply is no part of the conversation that went on."""
    script = replies(said("ok", "mine"), said("go", "on"), said("ok", "another"), said("end", "x"))
    one, sampler = session(script, thinking=True)
    await one.reply(asked(user("a")))
    await one.reply(asked(user("a"), said("ok"), user("b")))
    await one.reply(asked(user("a")))
    await one.reply(asked(NEW, user("a"), said("ok"), user("b"), said("go"), user("c")))
    prompt = sampler.format.decode(sampler.prompts[-1])
    assert prompt.index("mine") < prompt.index("on\n</think>")
    assert "another" not in prompt
    exact(one, sampler)
