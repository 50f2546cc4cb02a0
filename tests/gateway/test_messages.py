"""Anthropic's API of messages: what is read of blocks, and that a reply comes back as the message it was."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from wire_replies import MESSAGES, events, nearly, reply, streamed

from sojourn.gateway import messages
from sojourn.gateway.chat_completions import ChatCompletions
from sojourn.gateway.messages import Messages
from sojourn.gateway.requests import ChatRequest, RequestError
from sojourn.types import Message, Role, Tool, ToolCall

API = Messages()
ASKED = ChatRequest(messages=(), model="m")


def read(*said, **more):
    return API.read({"model": "m", "max_tokens": 9, "messages": list(said), **more})


def test_blocks_become_messages():
    got = read(
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}},
                                     {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a door"}]},
            {"type": "text", "text": "Go on."},
        ]},
        system=[{"type": "text", "text": "x-anthropic-billing-header: v1"}, {"type": "text", "text": "Be brief."}],
        tools=[{"name": "look", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "s"}],
        stop_sequences=["END"], metadata={"user_id": "u"},
    )  # fmt: skip
    assert got.messages == (
        Message(Role.SYSTEM, "Be brief."),
        Message(Role.USER, "a\nb"),
        Message(Role.ASSISTANT, "I look.", "Hm.", calls=(ToolCall("look", {"at": 1}, "c1"),)),
        Message(Role.TOOL, "a door", answers="c1"),
        Message(Role.USER, "Go on."),
    )
    assert got.tools == (Tool("look", "", {"type": "object"}),)
    assert (got.max_tokens, got.stop, got.unused) == (9, ("END",), ("metadata", "tools.web_search_20250305"))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"content": "no door", "is_error": True}, "error: no door"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "is_error": True}, "error: a\nb"),
        ({"is_error": True}, "error: "),
        ({"content": "a door", "is_error": False}, "a door"),
        ({"content": "a door", "is_error": None}, "a door"),
    ],
)
def test_a_result_says_that_its_call_failed(more, told):
    got = read({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", **more}]})
    assert got.messages == (Message(Role.TOOL, told, answers="c1"),)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "c", "content": "", "is_error": "yes"}],
                    }
                ]
            },
            r'is_error is "yes": expected true or false',
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, r"content\[0\] is of the type 'image'"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "expected text, thinking"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id is missing"),
        ({"tools": [{"name": "look"}]}, r"tools\[0\].input_schema is missing: expected an object"),
        ({"temperature": 2}, "temperature is 2: expected a number from 0 to 1"),
        ({"temperature": 1e-40}, "temperature is 1e-40: expected 0, or a number of at least 0.01"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(body, told):
    with pytest.raises(RequestError, match=told):
        API.read(body)


WORDS = [
    *messages.USED, "type", "role", "content", "user", "assistant", "text", "thinking", "tool_use", "tool_result", "id",
    "name", "input", "input_schema", "tool_use_id", "format", "schema", "enum", "const", "boolean", "system",
]  # fmt: skip


@given(nearly(WORDS))
def test_any_json_is_read_or_refused(body):
    with suppress(RequestError):
        API.read(body)


CHAT_WORDS = [
    "messages", "role", "content", "user", "assistant", "tool", "tool_calls", "function", "name", "arguments", "id",
    "tools", "parameters", "stop", "n", "response_format", "json_schema", "schema", "enum", "stream_options", "type",
    "text", "reasoning_content", "tool_call_id", "max_tokens", "temperature", "seed", "logprobs", '{"a": "\\ud800"}',
]  # fmt: skip


@given(nearly(CHAT_WORDS))
def test_any_json_of_chat_completions_is_read_or_refused(body):
    with suppress(RequestError):
        ChatCompletions().read(body)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_reply_comes_back_as_the_message_it_was(message):
    for api, place in ((API, lambda whole: whole), (ChatCompletions(), lambda whole: whole["choices"][0]["message"])):
        whole = json.loads(json.dumps(api.whole(ASKED, [reply(message)])))
        answer = {"role": "assistant", **place(whole)}
        assert api.read({"messages": [answer]}).messages == (message,)


@pytest.mark.parametrize("size", [0, 1, 3, 100])
@pytest.mark.parametrize("message", MESSAGES)
def test_a_stream_assembles_to_the_whole(message, size):
    told = events(streamed(API.stream(ASKED), reply(message), size))
    blocks, open_json = [], ""
    for event in told:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"])
                open_json = ""
            case "content_block_delta":
                delta = event["delta"]
                for key in ("text", "thinking", "signature"):
                    if key in delta:
                        blocks[-1][key] += delta[key]
                open_json += delta.get("partial_json", "")
            case "content_block_stop" if open_json:
                blocks[-1]["input"] = json.loads(open_json)
    whole = API.whole(ASKED, [reply(message)])
    signed = [{**block, "signature": ""} if "signature" in block else block for block in (*blocks, *whole["content"])]
    assert signed[: len(blocks)] == signed[len(blocks) :]
    assert told[-2]["delta"] == {key: whole[key] for key in ("stop_reason", "stop_sequence")}
    assert [event["type"] for event in (told[0], told[-1])] == ["message_start", "message_stop"]


def test_errors_have_the_form_of_the_api():
    error = RequestError("No room.", status=404)
    assert API.error(error) == {"type": "error", "error": {"type": "not_found_error", "message": "No room."}}
