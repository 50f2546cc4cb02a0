"""OpenAI's API of responses (`POST /v1/responses`): a conversation is a list of items, and one reply is several."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sojourn.gateway.reading import Field, listed_by, read_arguments, read_role, read_text, read_tool, said, unused
from sojourn.gateway.requests import ChatRequest, Delta, Kind, Reply, RequestError
from sojourn.gateway.writing import BlockStream, arguments_text, frame, has_text, openai_error, token_logprobs
from sojourn.types import Message, Role, Tool, ToolCall

USED = frozenset({
    "model", "instructions", "input", "tools", "max_output_tokens", "temperature", "top_p", "stream", "text", "include",
    "store", "tool_choice",
})  # fmt: skip
STORED = ("previous_response_id", "conversation", "prompt")  # fields that stand for what the server would have kept
LOGPROBS = "message.output_text.logprobs"
PART = {"text": "output_text", "thought": "reasoning_text"}
SEPARATOR = "__"  # between a namespace and the name of a tool in it


class Responses:
    """Reads and writes responses. A thought is the content of a reasoning item; nothing is kept between requests."""

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        whole = Field(body)
        for name in STORED:
            if body.get(name) is not None:
                raise RequestError(
                    f"{name} names what is stored, but nothing is stored here: send the whole history in input, and "
                    "store: false",
                    param=name,
                )
        tools = tuple(_tools(whole.get("tools")))
        listed, extra = _format(whole.get("text"))
        extra += () if body.get("tool_choice") in (None, "none") else ("tool_choice",)
        return ChatRequest(
            messages=(*_instructions(whole.get("instructions")), *_messages(whole.get("input"))),
            tools=tuple(tool.tool for tool in tools if tool.tool),
            namespaces={tool.tool.name: tool.namespace for tool in tools if tool.tool and tool.namespace},
            max_tokens=whole.get("max_output_tokens").integer(1),
            choices=listed,
            temperature=whole.get("temperature").temperature(2),
            top_p=whole.get("top_p").number(0, 1),
            calls=body.get("tool_choice") != "none",
            logprobs=LOGPROBS in [item.text() for item in whole.get("include").items()],
            stream=whole.get("stream").flag(),
            model=whole.get("model").text_or(""),
            unused=(*unused(body, USED), *extra, *sorted({f"tools.{tool.kind}" for tool in tools if not tool.tool})),
        )

    def whole(self, request: ChatRequest, replies: Sequence[Reply]) -> Mapping[str, Any]:
        return _Head(request).answered(replies[0])

    def stream(self, request: ChatRequest) -> _Stream:
        return _Stream(head=_Head(request))

    def error(self, error: RequestError) -> Mapping[str, Any]:
        return openai_error(error)


@dataclass(frozen=True)
class _ToolRead:
    """Holds a tool of a request; `tool` is None where it is of a kind that only OpenAI's servers run."""

    kind: str
    tool: Tool | None = None
    namespace: str = ""


def _tools(tools: Field) -> Iterator[_ToolRead]:
    for item in tools.items():
        kind = item.get("type").text_or("function")
        if kind == "namespace":
            name = item.get("name").text()
            for inner in _tools(item.get("tools")):
                yield _ToolRead(inner.kind, inner.tool and _within(name, inner.tool), name)
        else:
            yield _ToolRead(kind, read_tool(item, "parameters") if kind == "function" else None)


def _within(namespace: str, tool: Tool) -> Tool:
    return Tool(_full_name(namespace, tool.name), tool.description, tool.parameters)


def _full_name(namespace: str, name: str) -> str:
    return f"{namespace}{SEPARATOR}{name}" if namespace else name


def _format(text: Field) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the replies that the format of the text lists, and what else is asked of the text."""
    if text.value is None:
        return (), ()
    extra = tuple(f"text.{name}" for name in unused(text.object(), frozenset({"format"})))
    form = text.get("format")
    kind = "text" if form.value is None else form.get("type").text()
    listed = listed_by(form.get("schema")) if kind == "json_schema" else ()
    return listed, extra if listed or kind == "text" else ("text.format", *extra)


def _instructions(field: Field) -> list[Message]:
    text = field.text_or("")
    return [Message(Role.SYSTEM, text)] if text else []


def _messages(given: Field) -> Iterator[Message]:
    """Yields the messages of a history, where the items of one reply follow each other: thought, text, calls."""
    if isinstance(given.value, str):
        yield Message(Role.USER, given.text())
        return
    reply: list[Message] = []  # of the items that may go on
    for item in given.items():
        read = _item(item)
        if read is None:
            continue
        if reply and not _goes_on(reply[-1], read):
            yield _joined(reply)
            reply = []
        if read.role is Role.ASSISTANT:
            reply.append(read)
        else:
            yield read
    if reply:
        yield _joined(reply)


def _goes_on(last: Message, item: Message) -> bool:
    """Returns whether an item belongs to the reply whose last one is given."""
    return item.role is Role.ASSISTANT and (bool(item.calls) or (bool(last.thought) and not item.thought))


def _joined(items: Sequence[Message]) -> Message:
    texts, thoughts = "".join(item.text for item in items), "".join(item.thought for item in items)
    return said(texts, thoughts, [call for item in items for call in item.calls])


def _item(item: Field) -> Message | None:
    """Returns the message that an item is, or is a part of; None where it says nothing."""
    named = item.get("type").value is not None or item.get("role").value is not None
    kind = item.get("type").text_or("message") if named else "item_reference"
    match kind:
        case "message":
            return Message(read_role(item), read_text(item.get("content")))
        case "reasoning":
            thought = read_text(item.get("content")) or read_text(item.get("summary"))
            return said("", thought, []) if thought else None
        case "function_call":
            return said("", "", [_call(item)])
        case "function_call_output":
            return Message(Role.TOOL, read_text(item.get("output")), answers=item.get("call_id").text())
        case "item_reference":
            raise RequestError(
                f"{item.place} refers to an item that is stored, but nothing is stored here: send the item itself",
                param=item.place,
            )
        case _:
            raise RequestError(
                f"{item.place} is of the type {kind!r}: expected message, reasoning, function_call or "
                "function_call_output",
                param=item.place,
            )


def _call(item: Field) -> ToolCall:
    name = _full_name(item.get("namespace").text_or(""), item.get("name").text())
    return ToolCall(name, read_arguments(item.get("arguments")), item.get("call_id").text())


@dataclass
class _Head:
    """Holds what every part of a response has, and the ids of its items, which follow from its own."""

    request: ChatRequest
    hex: str = field(default_factory=lambda: uuid.uuid4().hex[:24])
    created: int = field(default_factory=lambda: int(time.time()))

    def response(self, status: str, output: Sequence[Mapping[str, Any]] = (), **more: Any) -> dict[str, Any]:
        return {
            "id": f"resp_{self.hex}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.request.model,
            "output": list(output),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "store": False,
            **more,
        }

    def answered(self, reply: Reply) -> dict[str, Any]:
        cut = {"incomplete_details": {"reason": "max_output_tokens"}} if reply.finish == "length" else {}
        status = "incomplete" if cut else "completed"
        return self.response(status, list(self._items(reply)), usage=_usage(reply), **cut)

    def _items(self, reply: Reply) -> Iterator[dict[str, Any]]:
        message = reply.message
        if message.thought:
            yield self.block("thought", message.thought)
        if has_text(message):
            logprobs = token_logprobs(reply) if self.request.logprobs else []
            yield self.block("text", message.text, logprobs)
        for number, call in enumerate(message.calls):
            yield self.call(number, call)

    def block_id(self, kind: Kind) -> str:
        return f"{'msg' if kind == 'text' else 'rs'}_{self.hex}"

    def block(self, kind: Kind, text: str | None, logprobs: Sequence[Any] = ()) -> dict[str, Any]:
        """Returns an item of a thought or a text; one that is only begun where the text is None."""
        status = "in_progress" if text is None else "completed"
        content = [] if text is None else [_part(kind, text, logprobs)]
        head = {"id": self.block_id(kind), "status": status, "content": content}
        if kind == "text":
            return {**head, "type": "message", "role": "assistant"}
        return {**head, "type": "reasoning", "summary": [], "encrypted_content": self.hex}

    def call(self, number: int, call: ToolCall, *, begun: bool = False) -> dict[str, Any]:
        namespace = self.request.namespaces.get(call.name, "")
        return {
            "id": f"fc_{self.hex}{number}",
            "type": "function_call",
            "status": "in_progress" if begun else "completed",
            "call_id": call.id,
            "name": call.name.removeprefix(_full_name(namespace, "")),
            "arguments": "" if begun else arguments_text(call),
            **({"namespace": namespace} if namespace else {}),
        }


def _part(kind: Kind, text: str, logprobs: Sequence[Any] = ()) -> dict[str, Any]:
    part: dict[str, Any] = {"type": PART[kind], "text": text}
    return {**part, "annotations": [], "logprobs": list(logprobs)} if kind == "text" else part


def _usage(reply: Reply) -> dict[str, Any]:
    sampled = len(reply.sample.tokens)
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": len(reply.parts.thought)},
        "total_tokens": reply.prompt_tokens + sampled,
    }


@dataclass(kw_only=True)
class _Stream(BlockStream):
    head: _Head
    events: int = 0
    items: int = 0  # that are complete

    def begin(self) -> Iterator[str]:
        yield self._event("response.created", response=self.head.response("in_progress"))
        yield self._event("response.in_progress", response=self.head.response("in_progress"))

    def opened(self, kind: Kind) -> Iterator[str]:
        yield self._added(self.head.block(kind, None))
        yield self._of_part(kind, "response.content_part.added", part=_part(kind, ""))

    def piece(self, delta: Delta) -> str:
        return self._of_part(delta.kind, f"response.{PART[delta.kind]}.delta", delta=delta.text, **_none(delta.kind))

    def closed(self, kind: Kind) -> Iterator[str]:
        yield self._of_part(kind, f"response.{PART[kind]}.done", text=self.text, **_none(kind))
        yield self._of_part(kind, "response.content_part.done", part=_part(kind, self.text))
        yield self._done(self.head.block(kind, self.text))

    def called(self, number: int, call: ToolCall) -> Iterator[str]:
        item = self.head.call(number, call)
        place = {"item_id": item["id"], "output_index": self.items}
        yield self._added(self.head.call(number, call, begun=True))
        yield self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        yield self._event(
            "response.function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"]
        )
        yield self._done(item)

    def finished(self, reply: Reply) -> Iterator[str]:
        answer = self.head.answered(reply)
        yield self._event(f"response.{answer['status']}", response=answer)

    def failed(self, error: RequestError) -> Iterator[str]:
        told = {"code": error.code if error.status < 500 else "server_error", "message": str(error)}
        yield self._event("response.failed", response=self.head.response("failed", error=told))

    def _event(self, kind: str, **data: Any) -> str:
        self.events += 1
        return frame({"type": kind, "sequence_number": self.events - 1, **data}, kind)

    def _added(self, item: Mapping[str, Any]) -> str:
        return self._event("response.output_item.added", output_index=self.items, item=item)

    def _done(self, item: Mapping[str, Any]) -> str:
        self.items += 1
        return self._event("response.output_item.done", output_index=self.items - 1, item=item)

    def _of_part(self, kind: Kind, event: str, **data: Any) -> str:
        place = {"item_id": self.head.block_id(kind), "output_index": self.items, "content_index": 0}
        return self._event(event, **place, **data)


def _none(kind: Kind) -> Mapping[str, Any]:
    """Returns the logprobs of a piece of text: they come with the whole response."""
    return {"logprobs": []} if kind == "text" else {}
