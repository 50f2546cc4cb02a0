"""Anthropic's API of messages (`POST /v1/messages`, and `.../count_tokens`, whose requests are read alike)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sojourn.gateway.reading import (
    Field,
    listed_by,
    read_arguments,
    read_part,
    read_role,
    read_stop,
    read_text,
    read_tool,
    said,
    unused,
)
from sojourn.gateway.requests import ChatRequest, Delta, Kind, Reply, RequestError
from sojourn.gateway.writing import BlockStream, arguments_text, frame, has_text
from sojourn.types import Message, Role, Tool, ToolCall

USED = frozenset({
    "model", "messages", "system", "tools", "max_tokens", "stop_sequences", "temperature", "top_p", "top_k",
    "stream", "output_config", "tool_choice",
})  # fmt: skip
NO_CALL = {"type": "none"}  # as the choice of a tool
BILLING = "x-anthropic-billing-header:"  # begins a block that Claude Code changes between versions, not for the model
FINISH = {"stop": "end_turn", "stop_string": "stop_sequence", "length": "max_tokens", "calls": "tool_use"}
ERRORS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 529: "overloaded_error",
}  # fmt: skip
FAILED = "error: "  # begins the answer to a call that failed, as where a server of tools says so (MCP)
BETWEEN = "\n"  # blocks of one message that the model did not write


class Messages:
    """Reads and writes messages. A thought is a block of thinking; a tag stands for its signature."""

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        whole = Field(body)
        tools = whole.get("tools").items()
        listed, extra = _format(whole.get("output_config"))
        extra += () if body.get("tool_choice") in (None, NO_CALL) else ("tool_choice",)
        return ChatRequest(
            messages=(*_system(whole.get("system")), *_messages(whole.get("messages"))),
            tools=tuple(_tool(tool) for tool in tools if not _of_server(tool)),
            max_tokens=whole.get("max_tokens").integer(1),
            stop=read_stop(whole.get("stop_sequences")),
            choices=listed,
            temperature=whole.get("temperature").temperature(1),
            top_p=whole.get("top_p").number(0, 1),
            top_k=whole.get("top_k").integer(0),
            calls=body.get("tool_choice") != NO_CALL,
            stream=whole.get("stream").flag(),
            model=whole.get("model").text_or(""),
            unused=(*unused(body, USED), *extra, *sorted({f"tools.{kind}" for kind in map(_of_server, tools) if kind})),
        )

    def whole(self, request: ChatRequest, replies: Sequence[Reply]) -> Mapping[str, Any]:
        (reply,) = replies
        head = _Head(request.model)
        return {**head.message(list(head.blocks(reply.message))), **_stop(reply), "usage": _usage(reply)}

    def stream(self, request: ChatRequest) -> _Stream:
        return _Stream(head=_Head(request.model))

    def error(self, error: RequestError) -> Mapping[str, Any]:
        kind = ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": str(error)}}

    def counted(self, tokens: int) -> Mapping[str, Any]:
        """Returns the answer to a request that only asks how long its prompt is."""
        return {"input_tokens": tokens}


def _of_server(tool: Field) -> str:
    """Returns the type of a tool that has a meaning of its own, without a schema; empty for one of the client's."""
    kind = tool.get("type").text_or("custom")
    return "" if kind == "custom" else kind


def _tool(tool: Field) -> Tool:
    tool.get("input_schema").object()
    return read_tool(tool, "input_schema")


def _format(config: Field) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the replies that the format of the output lists, and what else is asked of the output."""
    if config.value is None:
        return (), ()
    extra = tuple(f"output_config.{name}" for name in unused(config.object(), frozenset({"format"})))
    form = config.get("format")
    if form.value is None:
        return (), extra
    listed = listed_by(form.get("schema"))
    return listed, extra if listed else ("output_config.format", *extra)


def _system(system: Field) -> list[Message]:
    """Returns the system message, without the block in which Claude Code names its version for billing."""
    texts = [system.text()] if isinstance(system.value, str) else map(read_part, system.items())
    text = BETWEEN.join(text for text in texts if not text.startswith(BILLING))
    return [Message(Role.SYSTEM, text)] if text else []


def _messages(messages: Field) -> Iterator[Message]:
    for item in messages.items():
        role, content = read_role(item), item.get("content")
        if role is Role.ASSISTANT:
            yield _said(content)
        elif isinstance(content.value, str):
            yield Message(role, content.text())
        else:
            yield from _given(role, content.items())


def _given(role: Role, blocks: Sequence[Field]) -> Iterator[Message]:
    """Yields the messages of what the client says in one: results of tools, and the text between them."""
    for of_tools, run in groupby(blocks, lambda block: block.get("type").value == "tool_result"):
        if of_tools:
            for block in run:
                text = read_text(block.get("content"), BETWEEN)
                text = f"{FAILED}{text}" if block.get("is_error").flag() else text
                yield Message(Role.TOOL, text, answers=block.get("tool_use_id").text())
        else:
            yield Message(role, BETWEEN.join(map(read_part, run)))


def _said(content: Field) -> Message:
    if isinstance(content.value, str):
        return said(content.text(), "", [])
    text, thought, calls = "", "", list[ToolCall]()
    for block in content.items():
        match block.get("type").text_or("text"):
            case "text":
                text += block.get("text").text()
            case "thinking":
                thought += block.get("thinking").text()
            case "redacted_thinking":  # which nobody but its own server can read
                pass
            case "tool_use":
                arguments = read_arguments(block.get("input"))
                calls.append(ToolCall(block.get("name").text(), arguments, block.get("id").text()))
            case kind:
                raise RequestError(
                    f"{block.place} is of the type {kind!r}: expected text, thinking, redacted_thinking or tool_use",
                    param=block.place,
                )
    return said(text, thought, calls)


@dataclass
class _Head:
    """Holds what every part of an answer has; the id of a message is also the tag of its thought."""

    model: str
    id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex[:24]}")

    def message(self, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content}

    def blocks(self, message: Message) -> Iterator[dict[str, Any]]:
        if message.thought:
            yield {"type": "thinking", "thinking": message.thought, "signature": self.id}
        if has_text(message):
            yield {"type": "text", "text": message.text}
        for call in message.calls:
            yield {**_call(call), "input": dict(call.arguments)}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}


def _stop(reply: Reply) -> dict[str, Any]:
    return {"stop_reason": FINISH[reply.finish], "stop_sequence": reply.stop_string or None}


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reply.cached_tokens,
        "output_tokens": len(reply.sample.tokens),
    }


@dataclass(kw_only=True)
class _Stream(BlockStream):
    head: _Head
    blocks: int = 0  # that are complete

    def begin(self) -> Iterator[str]:
        """Writes the start of the message; how long its prompt is comes with its end."""
        empty = {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
        yield _event("message_start", message={**self.head.message([]), **empty})
        yield _event("ping")

    def opened(self, kind: Kind) -> Iterator[str]:
        thinking = {"type": "thinking", "thinking": "", "signature": ""}
        yield self._start({"type": "text", "text": ""} if kind == "text" else thinking)

    def piece(self, delta: Delta) -> str:
        key = "text" if delta.kind == "text" else "thinking"
        return self._delta({"type": f"{key}_delta", key: delta.text})

    def closed(self, kind: Kind) -> Iterator[str]:
        if kind == "thought":
            yield self._delta({"type": "signature_delta", "signature": self.head.id})
        yield self._finish()

    def called(self, number: int, call: ToolCall) -> Iterator[str]:
        yield self._start(_call(call))
        yield self._delta({"type": "input_json_delta", "partial_json": arguments_text(call)})
        yield self._finish()

    def finished(self, reply: Reply) -> Iterator[str]:
        yield _event("message_delta", delta=_stop(reply), usage=_usage(reply))
        yield _event("message_stop")

    def failed(self, error: RequestError) -> Iterator[str]:
        yield frame(Messages().error(error), "error")

    def _start(self, block: Mapping[str, Any]) -> str:
        return _event("content_block_start", index=self.blocks, content_block=block)

    def _delta(self, delta: Mapping[str, Any]) -> str:
        return _event("content_block_delta", index=self.blocks, delta=delta)

    def _finish(self) -> str:
        self.blocks += 1
        return _event("content_block_stop", index=self.blocks - 1)


def _event(kind: str, **data: Any) -> str:
    return frame({"type": kind, **data}, kind)
