"""The conversation of a request: what its answers of tools belong to, how long it is, and how it is rendered anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from sojourn.gateway.requests import ChatRequest, RequestError
from sojourn.protocols import Renderer
from sojourn.types import IntArray, Message, Prompt, Role, Sample, Stop, Tool, Versions


def readable(request: ChatRequest) -> tuple[Message, ...]:
    """Returns the messages of a request, in which answers of tools name their tool, not the call's id, and are in the
    order of the calls; raises `RequestError` where there is nothing to reply to."""
    messages = request.messages
    if not messages or messages[-1].role is Role.ASSISTANT:
        what = "ends with a message of the assistant" if messages else "has no messages"
        raise RequestError(f"the conversation {what}: expected one that ends with the user or a tool", param="messages")
    names = {call.id: call.name for message in messages for call in message.calls if call.id}
    return tuple(
        replace(message, answers=names[message.answers]) if message.answers in names else message
        for message in _in_order_of_calls(messages)
    )


def _in_order_of_calls(messages: Sequence[Message]) -> Iterator[Message]:
    """Yields the messages, where the answers right after a reply are in the order of its calls if all ids are known:
    clients send them as they come, but most chat formats have no ids, and tell them apart by their order alone."""
    places: dict[str | None, int] = {}  # of the calls of the latest reply, by their ids
    for role, run in groupby(messages, lambda message: message.role):
        found = list(run)
        if role is Role.TOOL and all(message.answers in places for message in found):
            found.sort(key=lambda message: places[message.answers])
        places = {call.id: at for at, call in enumerate(found[-1].calls) if call.id}
        yield from found


def characters(messages: Sequence[Message], tools: Sequence[Tool]) -> int:
    """Returns how many characters there are in all that is rendered of a conversation and its tools."""
    texts = sum(len(message.text) + len(message.thought) for message in messages)
    return texts + sum(map(len, _written(messages, tools)))


def _written(messages: Sequence[Message], tools: Sequence[Tool]) -> Iterator[str]:
    for call in (call for message in messages for call in message.calls):
        yield json.dumps([call.name, dict(call.arguments)], ensure_ascii=False)
    for tool in tools:
        yield json.dumps([tool.name, tool.description, dict(tool.parameters)], ensure_ascii=False)


def new_context(
    renderer: Renderer, messages: Sequence[Message], tools: Sequence[Tool], ours: Mapping[int, Sample]
) -> Prompt:
    """Renders a conversation anew. The replies `ours`, by their places in it, keep their sampled tokens there, unless
    the format rewrites history; thoughts that are not ours are left out."""
    plain = [replace(message, thought="") for message in messages]  # of ours, the samples have it
    said = [at for at, message in enumerate(plain) if message.role is Role.ASSISTANT]
    if not ours or not said[0]:
        return renderer.open(plain, tools)
    parts = [renderer.open(plain[: said[0]], tools).tokens]
    for at, after in zip(said, [*said[1:], len(plain)], strict=True):
        sample = ours[at] if at in ours else _as_sample(renderer.encode_reply(plain[at]))
        more = renderer.extend(sample, plain[at + 1 : after])
        if more is None:
            return renderer.open(plain, tools)
        parts += [sample.tokens, more.tokens]
    return joined(*parts)


def joined(*parts: IntArray) -> Prompt:
    return Prompt(np.concatenate(parts))


def _as_sample(tokens: Sequence[int]) -> Sample:
    """Returns tokens that nobody sampled as a sample, for a renderer that says what follows it."""
    array = np.asarray(tokens, dtype=np.int64)
    return Sample(array, np.zeros(len(array), dtype=np.float32), Versions(-1, -1), Stop.END)
