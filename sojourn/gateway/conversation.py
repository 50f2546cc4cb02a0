"""The conversation of a request: what its answers of tools belong to, how long it is, and how it is rendered anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np

from sojourn.errors import RenderError
from sojourn.gateway.requests import ChatRequest, RequestError
from sojourn.protocols import Renderer
from sojourn.types import IntArray, Message, Prompt, Role, Sample, Stop, Tool, Versions

T = TypeVar("T")


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


class Ours(NamedTuple):
    """Holds what was sampled for a reply of ours, and the thought in it."""

    sample: Sample
    thought: str


def new_context(
    renderer: Renderer, messages: Sequence[Message], tools: Sequence[Tool], ours: Mapping[int, Ours]
) -> Prompt:
    """Renders a conversation anew. The replies `ours`, by their places in it, keep their sampled tokens there. Where
    the format rewrites history, or cannot write another reply as it would be sampled, they have their thoughts, as the
    others do that were sent with one: the format says which of these stay, and one without thoughts has none."""
    thinking = [replace(m, thought=ours[at].thought) if at in ours else m for at, m in enumerate(messages)]
    try:
        whole = _with_samples(renderer, thinking, tools, ours) if ours else None
    except RenderError:
        whole = None
    return whole or _thoughts_or_none(lambda kept: renderer.open(kept, tools), thinking)


def _with_samples(
    renderer: Renderer, messages: Sequence[Message], tools: Sequence[Tool], ours: Mapping[int, Ours]
) -> Prompt | None:
    """Returns a conversation with the tokens of the replies of ours, None where the format rewrites history."""
    said = [at for at, message in enumerate(messages) if message.role is Role.ASSISTANT]
    if not said[0]:
        return None
    parts = [renderer.open(messages[: said[0]], tools).tokens]
    for at, after in zip(said, [*said[1:], len(messages)], strict=True):
        if at in ours:
            sample = ours[at].sample
        else:
            sample = _as_sample(_thoughts_or_none(lambda kept: renderer.encode_reply(kept[0]), messages[at : at + 1]))
        more = renderer.extend(sample, messages[at + 1 : after])
        if more is None:
            return None
        parts += [sample.tokens, more.tokens]
    return joined(*parts)


def _thoughts_or_none(render: Callable[[Sequence[Message]], T], messages: Sequence[Message]) -> T:
    """Renders messages with their thoughts, or without any where the format has no form for them."""
    try:
        return render(messages)
    except RenderError:
        return render([replace(message, thought="") for message in messages])


def joined(*parts: IntArray) -> Prompt:
    return Prompt(np.concatenate(parts))


def _as_sample(tokens: Sequence[int]) -> Sample:
    """Returns tokens that nobody sampled as a sample, for a renderer that says what follows it."""
    array = np.asarray(tokens, dtype=np.int64)
    return Sample(array, np.zeros(len(array), dtype=np.float32), Versions(-1, -1), Stop.END)
