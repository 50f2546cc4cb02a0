"""The API of OpenAI's chat completions (`POST /v1/chat/completions`)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sojourn.gateway.reading import (
    Field,
    listed_by,
    read_arguments,
    read_role,
    read_stop,
    read_text,
    read_tool,
    said,
    unused,
)
from sojourn.gateway.requests import ChatRequest, Delta, Reply, RequestError, Told
from sojourn.gateway.writing import arguments_text, frame, openai_error, token_logprobs
from sojourn.types import Message, Role, ToolCall

USED = frozenset({
    "model", "messages", "tools", "max_tokens", "max_completion_tokens", "stop", "temperature", "top_p", "top_k",
    "seed", "n", "logprobs", "stream", "stream_options", "response_format", "tool_choice",
})  # fmt: skip
THOUGHTS = ("reasoning_content", "reasoning")  # fields in which servers and clients write a thought
FINISH = {"stop": "stop", "stop_string": "stop", "length": "length", "calls": "tool_calls"}
MOST_SAMPLES = 128


class ChatCompletions:
    """Reads and writes chat completions. A thought goes into `reasoning_content`, as other servers write it. The
    `logprobs` list the tokens of the content alone; those of a stream come with its last chunk."""

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        whole = Field(body)
        limit = whole.get("max_completion_tokens")
        limit = whole.get("max_tokens") if limit.value is None else limit
        listed = _listed(whole.get("response_format"))
        for older in ("functions", "function_call"):
            if body.get(older):
                raise whole.get(older).refused("tools in its place, as the older form of calls is not read")
        extra = unused(body, USED) + (("response_format",) if not listed and _formatted(body) else ())
        extra += () if body.get("tool_choice") in (None, "none") else ("tool_choice",)
        return ChatRequest(
            messages=tuple(_message(item) for item in whole.get("messages").items()),
            tools=tuple(read_tool(item.get("function"), "parameters") for item in whole.get("tools").items()),
            max_tokens=limit.integer(1),
            stop=read_stop(whole.get("stop")),
            choices=listed,
            temperature=whole.get("temperature").temperature(2),
            top_p=whole.get("top_p").number(0, 1),
            top_k=whole.get("top_k").integer(-1),
            seed=whole.get("seed").integer(-(2**63)),
            samples=whole.get("n").integer(1, MOST_SAMPLES) or 1,
            calls=body.get("tool_choice") != "none",
            logprobs=whole.get("logprobs").flag(),
            stream=whole.get("stream").flag(),
            usage_in_stream=bool(body.get("stream_options"))
            and whole.get("stream_options").get("include_usage").flag(),
            model=whole.get("model").text_or(""),
            unused=extra,
        )

    def whole(self, request: ChatRequest, replies: Sequence[Reply]) -> Mapping[str, Any]:
        choices = [
            {
                "index": number,
                "message": _written(reply.message),
                "logprobs": _logprobs(reply) if request.logprobs else None,
                "finish_reason": FINISH[reply.finish],
            }
            for number, reply in enumerate(replies)
        ]
        return {**_Head(request.model).of("chat.completion"), "choices": choices, "usage": _usage(replies)}

    def stream(self, request: ChatRequest) -> _Stream:
        return _Stream(request, _Head(request.model), [Told(number) for number in range(request.samples)])

    def error(self, error: RequestError) -> Mapping[str, Any]:
        return openai_error(error)


@dataclass
class _Head:
    """Holds what every part of an answer begins with."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def of(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


@dataclass
class _Stream:
    request: ChatRequest
    head: _Head
    told: list[Told]  # of each reply

    def begin(self) -> Iterator[str]:
        for one in self.told:
            yield self._chunk(one.number, {"role": "assistant", "content": ""})

    def delta(self, delta: Delta) -> Iterator[str]:
        self.told[delta.number].add(delta)
        yield self._chunk(delta.number, {"content" if delta.kind == "text" else THOUGHTS[0]: delta.text})

    def end(self, replies: Sequence[Reply]) -> Iterator[str]:
        for one, reply in zip(self.told, replies, strict=True):
            for delta in one.rest(reply.message.thought, reply.message.text):
                yield from self.delta(delta)
            for number, call in enumerate(_calls(reply.message)):
                yield self._chunk(one.number, {"tool_calls": [{"index": number, **call}]})
            logprobs = {"logprobs": _logprobs(reply)} if self.request.logprobs else {}
            yield self._chunk(one.number, {}, FINISH[reply.finish], **logprobs)
        if self.request.usage_in_stream:
            yield frame({**self.head.of("chat.completion.chunk"), "choices": [], "usage": _usage(replies)})
        yield "data: [DONE]\n\n"

    def failed(self, error: RequestError) -> Iterator[str]:
        yield frame(openai_error(error))

    def _chunk(self, number: int, delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> str:
        choice = {"index": number, "delta": delta, "finish_reason": finish, **more}
        return frame({**self.head.of("chat.completion.chunk"), "choices": [choice]})


def _message(item: Field) -> Message:
    role, content = read_role(item), item.get("content")
    if role is Role.USER and content.value is None:
        raise content.refused("a text, or a list of parts")
    text = read_text(content)
    if role is Role.ASSISTANT:
        if item.get("function_call").value is not None:
            raise item.get("function_call").refused("tool_calls in its place, as the older form of calls is not read")
        thought = next((one.text() for one in map(item.get, THOUGHTS) if one.value), "")
        return said(text, thought, [_call(call) for call in item.get("tool_calls").items()])
    answers = None
    if role is Role.TOOL:
        answers = item.get("tool_call_id").text_or("") or item.get("name").text_or("")
    return Message(role, text, answers=answers)


def _call(call: Field) -> ToolCall:
    function = call.get("function")
    return ToolCall(function.get("name").text(), read_arguments(function.get("arguments")), call.get("id").text_or(""))


def _formatted(body: Mapping[str, Any]) -> bool:
    form = body.get("response_format")
    return bool(form) and not (isinstance(form, Mapping) and form.get("type") == "text")


def _listed(form: Field) -> tuple[str, ...]:
    """Returns the replies that a response format allows, if its schema lists them."""
    if form.value is None or form.get("type").text_or("text") != "json_schema":
        return ()
    return listed_by(form.get("json_schema").get("schema"))


def _written(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"role": "assistant", "content": message.text or (None if message.calls else "")}
    if message.thought:
        written[THOUGHTS[0]] = message.thought
    if message.calls:
        written["tool_calls"] = _calls(message)
    return written


def _calls(message: Message) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        }
        for call in message.calls
    ]


def _logprobs(reply: Reply) -> dict[str, Any]:
    return {"content": token_logprobs(reply), "refusal": None}


def _usage(replies: Sequence[Reply]) -> dict[str, Any]:
    prompt, sampled = replies[0].prompt_tokens, sum(len(reply.sample.tokens) for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": replies[0].cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": sum(len(reply.parts.thought) for reply in replies)},
    }
