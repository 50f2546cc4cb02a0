"""The API of responses: what is read of items, and that a reply comes back as the message it was, whole or streamed."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from wire_replies import CALLS, MESSAGES, events, nearly, reply, streamed

from sojourn.gateway import responses
from sojourn.gateway.requests import ChatRequest, RequestError
from sojourn.gateway.responses import Responses
from sojourn.types import Message, Role, Tool, ToolCall

API = Responses()
ASKED = ChatRequest(messages=(), model="m")
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
EVENTS = TypeAdapter(ResponseStreamEvent)


def read(*items, **more):
    return API.read({"model": "m", "input": list(items), **more})


def test_a_text_is_a_message_of_the_user_after_the_instructions():
    got = API.read({"input": "Open it.", "instructions": "You are careful.", "max_output_tokens": 9, "store": False})
    assert got.messages == (Message(Role.SYSTEM, "You are careful."), Message(Role.USER, "Open it."))
    assert (got.max_tokens, got.unused) == (9, ())


def test_items_become_messages():
    got = read(
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"role": "assistant", "content": "Plain."},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": ' {"at" :1}'},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a door"}]},
        {"type": "function_call_output", "call_id": "c2", "output": "nothing"},
    ).messages
    assert got == (
        Message(Role.SYSTEM, "Rules."),
        Message(Role.USER, "ab"),
        Message(Role.ASSISTANT, "Plain.", calls=(ToolCall("look", {"at": 1}, "c1"),)),
        Message(Role.TOOL, "a door", answers="c1"),
        Message(Role.TOOL, "nothing", answers="c2"),
    )


def test_a_new_reply_begins_where_an_item_cannot_follow_the_last():
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "opaque"}
    text = {"role": "assistant", "content": "Yes."}
    call = {"type": "function_call", "call_id": "c", "name": "go", "arguments": "{}"}
    got = read(thought, text, call, call, text, sealed, text, thought, call, thought).messages
    go = ToolCall("go", {}, "c")
    assert got == (
        Message(Role.ASSISTANT, "Yes.", "Hm.", calls=(go, go)),
        Message(Role.ASSISTANT, "Yes."),
        Message(Role.ASSISTANT, "Yes."),
        Message(Role.ASSISTANT, "", "Hm.", calls=(go,)),
        Message(Role.ASSISTANT, "", "Hm."),
    )


TOOLS = [
    {"type": "function", "name": "look", "description": "Looks.", "parameters": SCHEMA, "strict": True},
    {"type": "namespace", "name": "mcp__w", "description": "", "tools": [{"type": "function", "name": "guess"}]},
    {"type": "web_search"},
    {"type": "custom", "name": "patch"},
]


def test_tools_in_a_namespace_have_its_name_before_theirs_and_those_of_servers_are_left_out():
    got = read(tools=TOOLS)
    assert got.tools == (Tool("look", "Looks.", SCHEMA), Tool("mcp__w__guess", "", {"type": "object"}))
    assert got.namespaces == {"mcp__w__guess": "mcp__w"}
    assert got.unused == ("tools.custom", "tools.web_search")


def test_a_call_in_a_namespace_is_written_with_it_and_comes_back():
    asked = read(tools=TOOLS)
    said = Message(Role.ASSISTANT, calls=(ToolCall("mcp__w__guess", {"n": 3}, "c1"), ToolCall("look", {}, "c2")))
    calls = API.whole(asked, [reply(said)])["output"]
    assert [(call["name"], call.get("namespace")) for call in calls] == [("guess", "mcp__w"), ("look", None)]
    assert read(*calls).messages == (said,)


def test_settings_are_read_and_what_changes_nothing_is_named():
    got = read(
        temperature=0.5, top_p=0.9, stream=True, include=["message.output_text.logprobs"], reasoning={"effort": "low"},
        text={"verbosity": "low", "format": {"type": "json_object"}}, tool_choice="auto", parallel_tool_calls=None,
    )  # fmt: skip
    assert (got.temperature, got.top_p, got.stream, got.logprobs) == (0.5, 0.9, True, True)
    assert got.unused == ("reasoning", "text.format", "text.verbosity", "tool_choice")


def test_a_schema_that_lists_its_texts_gives_choices():
    form = {"type": "json_schema", "name": "x", "schema": {"enum": ["red", 2]}}
    got = read(text={"format": form})
    assert (got.choices, got.unused) == (('"red"', "2"), ())
    assert read(text={"format": {**form, "schema": {"type": "object"}}}).unused == ("text.format",)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id names what is stored"),
        ({"conversation": "c"}, "conversation names what is stored"),
        ({"input": 5}, "input is 5: expected a list"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, r"input\[0\] refers to an item that is stored"),
        ({"input": [{"id": "msg_1"}]}, r"input\[0\] refers to an item that is stored"),
        ({"input": [{"type": "compaction"}]}, r"input\[0\] is of the type 'compaction': expected message, reasoning"),
        ({"input": [{"role": "cat", "content": ""}]}, r'input\[0\].role is "cat": expected one of system'),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, r"content\[0\] is of the type 'input_im"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]}, "expected JSON of an"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "call_id is missing"),
        ({"input": "\ud800"}, "input cannot be written as JSON"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\].name is missing: expected a string"),
        ({"max_output_tokens": 0}, "max_output_tokens is 0: expected a whole number from 1 to 9223372036854775807"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(body, told):
    with pytest.raises(RequestError, match=told) as caught:
        API.read(body)
    assert caught.value.status == 400


WORDS = [
    *responses.USED, *responses.STORED, "type", "role", "content", "user", "assistant", "message", "reasoning", "id",
    "function_call", "function_call_output", "call_id", "name", "arguments", "output", "namespace", "function", "enum",
    "parameters", "format", "json_schema", "schema", "const", "summary", "output_text", '{"a": 1}', '{"a": "\\ud800"}',
]  # fmt: skip


@given(nearly(WORDS))
def test_any_json_is_read_or_refused(body):
    with suppress(RequestError):
        API.read(body)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_reply_comes_back_as_the_message_it_was(message):
    whole = API.whole(ASKED, [reply(message)])
    assert Response.model_validate(whole, strict=True).output_text == message.text
    assert read(*json.loads(json.dumps(whole))["output"]).messages == (message,)


@pytest.mark.parametrize("size", [0, 1, 3, 100])
@pytest.mark.parametrize("message", MESSAGES)
def test_a_stream_assembles_to_the_whole(message, size):
    told = events(streamed(API.stream(ASKED), reply(message), size))
    state = ResponseStreamState(input_tools=[], text_format=omit)
    for number, event in enumerate(told):
        parsed = EVENTS.validate_python(event)
        assert parsed.sequence_number == number
        state.handle_event(parsed)
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    whole = API.whole(ASKED, [reply(message)])
    assert done == told[-1]["response"]["output"]
    assert told[-1]["response"].keys() == whole.keys()
    assert read(*done).messages == (message,) == read(*whole["output"]).messages


def test_events_come_in_the_order_that_clients_ask_for():
    told = events(streamed(API.stream(ASKED), reply(MESSAGES[2]), 100))
    kinds = [event["type"].removeprefix("response.") for event in told]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        *call, *call, "completed",
    ]  # fmt: skip
    assert [e["output_index"] for e in told if e["type"] == "response.output_item.done"] == [0, 1, 2, 3]
    assert len({e["item"]["id"] for e in told if e["type"] == "response.output_item.added"}) == 4


def test_a_reply_that_was_cut_is_incomplete():
    cut = reply(MESSAGES[1], "length")
    whole = API.whole(ASKED, [cut])
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert events(streamed(API.stream(ASKED), cut))[-1]["type"] == "response.incomplete"


def test_usage_and_logprobs_are_true():
    asked = ChatRequest(messages=(), logprobs=True)
    got = Response.model_validate(API.whole(asked, [reply(MESSAGES[1])]), strict=True)
    assert got.usage
    assert (got.usage.input_tokens, got.usage.output_tokens, got.usage.total_tokens) == (20, 3, 23)
    assert got.usage.input_tokens_details.cached_tokens == 8
    assert [one.logprob for one in got.output[0].content[0].logprobs] == [-0.5, -1]


def test_ids_are_short_and_new():
    first, other = (API.whole(ASKED, [reply(MESSAGES[2])]) for _ in range(2))
    ids = [item["id"] for whole in (first, other) for item in whole["output"]]
    assert len({*ids, first["id"], other["id"]}) == 10
    assert max(map(len, ids)) <= 40
    assert [item["call_id"] for item in first["output"][2:]] == [call.id for call in CALLS]


def test_a_failure_is_an_event_or_an_error():
    error = RequestError("The context is full.", code="context_length_exceeded")
    (event,) = events(list(API.stream(ASKED).failed(error)))
    assert (event["type"], event["response"]["error"]["code"]) == ("response.failed", "context_length_exceeded")
    assert API.error(error)["error"]["message"] == "The context is full."
