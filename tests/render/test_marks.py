"""The chat template that goes with an exported model writes what the renderer wrote in training."""

from dataclasses import replace

import pytest

from sojourn.render.chatml import ChatML
from sojourn.render.gemma import Gemma
from sojourn.types import Message, Role, Tool, ToolCall
from tests.render.tokenizers_of_models import tokenizer

LOOK = Tool("look", "Look somewhere.", {"type": "object", "properties": {"where": {"type": "string"}}})
CALL = ToolCall("look", {"where": "日本", "how": [1, None]})
SYSTEM, ASKS = Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "Where?")
ANSWER = Message(Role.TOOL, '{"seen": "a wall"}', answers="look")
CONVERSATIONS = {
    "text": ([ASKS, Message(Role.ASSISTANT, "go north"), Message(Role.USER, "A wall.")], []),
    "system": ([SYSTEM, ASKS, Message(Role.USER, "And then?")], []),
    "no system, tools": ([ASKS, Message(Role.ASSISTANT, calls=(CALL, CALL)), ANSWER, ANSWER], [LOOK, LOOK]),
    "system, tools": ([SYSTEM, ASKS, Message(Role.ASSISTANT, "So.", calls=(CALL,)), ANSWER, ASKS], [LOOK]),
}


def as_dict(message: Message) -> dict:
    calls = [{"function": {"name": c.name, "arguments": dict(c.arguments)}} for c in message.calls]
    found = {"role": str(message.role), "content": message.text or None, "reasoning_content": message.thought}
    return found | ({"tool_calls": calls} if calls else {})


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize(("model", "form"), [("tiny", ChatML), ("smollm2", ChatML), ("gemma3-270m", Gemma)])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_format_as_a_template_writes_the_prompts_of_the_renderer(model, form, thinking, name):
    messages, tools = CONVERSATIONS[name]
    if thinking:
        messages = [replace(m, thought="Hm.") if m.role is Role.ASSISTANT else m for m in messages]
    renderer = form(thinking=thinking).bind(tokenizer(model))
    functions = [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in tools]
    written = renderer.codec.tokenizer.apply_chat_template(
        [as_dict(message) for message in messages],
        tools=[{"type": "function", "function": function} for function in functions] or None,
        chat_template=renderer.chat_template,
        add_generation_prompt=True,
        tokenize=False,
    )
    assert written == renderer.decode(renderer.open(messages, tools).tokens)


def test_arguments_that_are_json_already_stay_as_they_are():
    renderer = ChatML().bind(tokenizer("tiny"))
    call = {"function": {"name": "look", "arguments": '{"where": "north"}'}}
    written = renderer.codec.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Where?"}, {"role": "assistant", "tool_calls": [call]}],
        chat_template=renderer.chat_template,
        tokenize=False,
    )
    reply = renderer.encode_reply(Message(Role.ASSISTANT, calls=(ToolCall("look", {"where": "north"}),)))
    assert written.endswith(f"<|im_start|>assistant\n{renderer.decode(reply)}\n")
