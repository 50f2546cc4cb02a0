"""A context that is rendered anew has the thoughts that the format keeps, and is refused only where it must be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sojourn.gateway.session import Session
from sojourn.protocols import AgentContext
from sojourn.render.template import Template
from sojourn.types import Message, Role, SamplingParams, ToolCall
from tests.gateway_sessions import LOOK, OddSampler, asked, exact, replies, said, session, user
from tests.render.models_templates import with_template

NEW = Message(Role.SYSTEM, "It is 12:01.")
CALL = ToolCall("look", {"at": "door"})


def written(message: Message) -> dict:
    calls = [{"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}} for c in message.calls]
    parts = {"reasoning_content": message.thought, "tool_calls": calls}
    return {"role": str(message.role), "content": message.text, **{key: part for key, part in parts.items() if part}}


@pytest.mark.parametrize("sent_back", [True, False], ids=["with thoughts", "without"])
async def test_the_thoughts_that_a_template_keeps_are_in_the_prompt(sent_back):
    """Qwen3's template removes the thoughts before the last question, and keeps those after it."""
    tokenizer = with_template("hybrid")
    format = Template(thinking=True).bind(tokenizer)
    sampler = OddSampler(format, replies(said("hello", "greet"), said("", "I must look first", CALL), said("red", "x")))
    context = AgentContext(name="agent", renderer=format, sampler=sampler, params=SamplingParams(512), max_context=4096)
    one, history = Session("s", context), [user("hi")]
    for then in (lambda reply: user("is the door red?"), lambda reply: Message(Role.TOOL, "it is", answers="look")):
        (reply,) = await one.reply(asked(*history, tools=[LOOK]))
        history += [reply.message, then(reply.message)]
    sent = history if sent_back else [replace(message, thought="") for message in history]
    await one.reply(asked(NEW, *sent, tools=[LOOK]))
    tool = {"type": "function", "function": vars(LOOK)}
    whole = tokenizer.apply_chat_template([written(one) for one in (NEW, *history)], tools=[tool], tokenize=False,
                                          add_generation_prompt=True, enable_thinking=True)  # fmt: skip
    question = "is the door red?"
    prompt = format.decode(sampler.prompts[-1])
    assert "I must look first" in prompt
    assert prompt[prompt.index(question) :] == whole[whole.index(question) :]
    exact(one, sampler)


@pytest.mark.parametrize("thinking", [True, False])
async def test_thoughts_of_replies_that_are_not_ours_stay_where_the_format_has_thoughts(thinking):
    one, sampler = session(lambda prompt: said("ok", "mine" if thinking else ""), thinking=thinking)
    theirs = said("Theirs.", "their thought")
    await one.reply(asked(user("a"), theirs, user("b")))
    await one.reply(asked(NEW, user("a"), theirs, user("b"), said("ok"), user("c")))
    for number, thoughts in ((0, ["their thought"]), (1, ["their thought", "mine"])):
        prompt = sampler.format.decode(sampler.prompts[number])
        assert [thought in prompt for thought in thoughts] == [thinking] * len(thoughts)


async def test_a_reply_that_nobody_could_sample_is_no_reason_to_refuse_what_was_answered_before():
    """An example that spells a call is plain text where the whole is rendered, as it was in the first request."""
    theirs = said('Write <tool_call>{"name": "x"}</tool_call>.')
    one, sampler = session(lambda prompt: said("fine"))
    history = [user("a"), theirs, user("b")]
    await one.reply(asked(*history))
    await one.reply(asked(NEW, *history, said("fine"), user("c")))
    assert [turn.parent for turn in one.turns] == [-1, -1]
    assert 'Write <tool_call>{"name": "x"}</tool_call>.' in sampler.format.decode(sampler.prompts[-1])
    exact(one, sampler)
