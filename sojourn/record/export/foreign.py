"""Reads conversations of other programs from records: lines of JSON, items of a JSON list, or rows of Parquet.

Four shapes are known by their keys (`SHAPES`): a preference, `chosen` and `rejected`, which are two conversations; chat
`messages`; `conversations`, which are ShareGPT's turns (`from` and `value`) or chat messages; and `prompt` with
`completion`, each a text or chat messages. Beside them any record may have `system`, `tools`, `reward`, `success`,
`label`, `task`, `agent` and `trainable`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from sojourn.codec import from_plain, to_plain
from sojourn.errors import RecordError
from sojourn.record.export.conversations import (
    MALFORMED,
    Conversation,
    converted,
    foreign_task,
    is_task,
    malformed,
    number,
)
from sojourn.record.export.messages import call_of, message_of, text_of, tool_of
from sojourn.types import Message, Role, Task

EXAMPLES = {
    "messages": 'chat messages {"messages": [{"role": "user", "content": "..."}, ...]}',
    "conversations": 'ShareGPT turns {"conversations": [{"from": "human", "value": "..."}, ...]}',
    "prompt": '{"prompt": "...", "completion": "..."}',
    "chosen": '{"prompt": "...", "chosen": "...", "rejected": "..."}',
}
EXPECTED = ", or ".join(EXAMPLES.values())
PREFERENCE = ("chosen", "rejected")  # the keys of its sides
ROLES = {
    "system": Role.SYSTEM,
    "human": Role.USER,
    "user": Role.USER,
    "gpt": Role.ASSISTANT,
    "assistant": Role.ASSISTANT,
    "function_call": Role.ASSISTANT,
    "observation": Role.TOOL,
    "tool": Role.TOOL,
}  # of ShareGPT's turns, by `from`


def shape_of(keys: Collection[str]) -> str | None:
    """Returns the name of the shape that a record with these keys has, or None where it has none of them."""
    return next((shape for shape in SHAPES if shape in keys), None)


def conversations(record: Mapping[str, Any], where: str) -> list[Conversation]:
    """Returns the conversations that a record holds: two for a preference, the preferred one first, and else one.

    Raises `RecordError` with the place of what cannot be read.
    """
    shape = shape_of(record)
    if shape is None:
        raise RecordError(f"{where} has the keys {', '.join(record)[:80] or 'of nothing'}: expected {EXPECTED}")
    try:
        if shape == "chosen":
            return [_conversation(side, _completed(side), shape, where) for side in _sides(record)]
        return [_conversation(record, SHAPES[shape](record), shape, where)]
    except MALFORMED as error:
        raise malformed(where, error, EXAMPLES[shape]) from error


Weighed = tuple[Message, bool]  # a message, and whether it is to be learnt if it is the assistant's


def _conversation(record: Mapping[str, Any], weighed: Sequence[Weighed], shape: str, where: str) -> Conversation:
    if record.get("system"):
        weighed = [(Message(Role.SYSTEM, text_of(record, "system")), False), *weighed]
    messages = tuple(message for message, _ in weighed)
    spoken = [place for place, message in enumerate(messages) if message.role is Role.ASSISTANT]
    label = float(record["label"]) if isinstance(record.get("label"), bool) else None  # others mean other things by it
    success, tools = record.get("success", label), record.get("tools") or []
    tools = json.loads(tools) if isinstance(tools, str) else tools  # some programs write a JSON text
    trainable = record.get("trainable", True)
    return Conversation(
        where=where,
        messages=messages,
        imitated=frozenset(place for place in spoken if weighed[place][1] and trainable),
        tools=tuple(converted("tools", tools, tool_of)),
        reward=number(record.get("reward", label)),
        success=None if success is None else bool(success),
        task=_task(record, messages[: spoken[0]] if spoken else messages, shape),
        agent=str(record.get("agent", "agent")),
    )


def _task(record: Mapping[str, Any], beginning: Sequence[Message], shape: str) -> Task:
    task = record.get("task")
    return from_plain(task, Task) if is_task(task) else foreign_task(_ENVS[shape], beginning)


def _sides(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns a preference as two records with a `prompt`, a `completion` and a reward: the `score_chosen` and
    `score_rejected` of the record, or 1 and 0.

    Without `prompt` both sides are whole chats, whose common beginning is the prompt. The two are plays of one task,
    which no other record has, unless it names it.
    """
    sides = [record[key] for key in PREFERENCE]
    if sides[0] == sides[1]:
        raise ValueError("chosen and rejected are the same: none is preferred")
    prompt = record.get("prompt")
    if prompt is None:
        if not all(isinstance(side, list) for side in sides):
            raise ValueError(f"chosen is {str(sides[0])[:40]!r} without a prompt, not a list of chat messages")
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(*sides, strict=False))))
        prompt, sides = sides[0][:shared], [side[shared:] for side in sides]
    own = record.get("task")
    if not is_task(own):
        own = to_plain(foreign_task("preference", (record.get("system"), prompt, *sides)))
    return [
        {
            **record,
            "prompt": prompt,
            "completion": side,
            "reward": record.get(f"score_{key}", 1.0 if preferred else 0.0),
            "success": preferred,
            "task": own,
        }
        for key, side, preferred in zip(PREFERENCE, sides, (True, False), strict=True)
    ]


def _messages(record: Mapping[str, Any]) -> list[Weighed]:
    weighed = _chat("messages", record["messages"])
    for index, text in (record.get("written_calls") or {}).items():
        place = int(index)
        message, learnt = weighed[place]
        weighed[place] = replace(message, text=str(text), calls=()), learnt
        if place + 1 < len(weighed) and weighed[place + 1][0].role is Role.TOOL:
            answer, learnt = weighed[place + 1]
            weighed[place + 1] = replace(answer, role=Role.USER, answers=None), learnt
    return weighed


def _chat(key: str, values: Any) -> list[Weighed]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"{key} is {str(values)[:40]!r}")
    messages = converted(key, values, message_of)
    return [(message, _is_learnt(data)) for message, data in zip(messages, values, strict=True)]


def _is_learnt(data: Mapping[str, Any]) -> bool:
    """Returns whether a message is to be learnt, by its `weight`."""
    weight = data.get("weight", 1)
    if weight not in (0, 1):
        raise ValueError(f"weight is {str(weight)[:40]!r}, neither 1 (learnt) nor 0 (context only)")
    return bool(weight)


def _conversations(record: Mapping[str, Any]) -> list[Weighed]:
    turns = record["conversations"]
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"conversations is {str(turns)[:40]!r}")
    if isinstance(turns[0], Mapping) and "role" in turns[0]:
        return _chat("conversations", turns)
    weighed: list[Weighed] = []
    for turn, message in zip(turns, converted("conversations", turns, _turn), strict=True):
        before = weighed[-1][0] if weighed else None
        if before is not None and turn["from"] == "function_call" and before.role is Role.ASSISTANT:
            message = Message(Role.ASSISTANT, before.text, calls=(*before.calls, *message.calls))  # of the same turn
            del weighed[-1]
        weighed.append((message, _is_learnt(turn)))
    return weighed


def _turn(data: Mapping[str, Any]) -> Message:
    """Returns the message of one of ShareGPT's turns."""
    author, value = data["from"], text_of(data, "value")
    if author not in ROLES:
        raise ValueError(f"from is {str(author)[:40]!r}, which is none of {', '.join(ROLES)}")
    if author != "function_call":
        return Message(ROLES[author], value)
    calls = json.loads(value)
    return Message(Role.ASSISTANT, calls=tuple(map(call_of, calls if isinstance(calls, list) else [calls])))


def _completed(record: Mapping[str, Any]) -> list[Weighed]:
    """Returns the messages of a prompt and its completion; only those of the completion are learnt."""
    prompt = [(message, False) for message, _ in _side("prompt", record["prompt"], Role.USER)]
    return [*prompt, *_side("completion", record["completion"], Role.ASSISTANT)]


def _side(key: str, value: Any, role: Role) -> list[Weighed]:
    return [(Message(role, value), True)] if isinstance(value, str) else _chat(key, value)


SHAPES: dict[str, Callable[[Mapping[str, Any]], list[Weighed]]] = {
    "chosen": _completed,  # after `_sides`
    "messages": _messages,
    "conversations": _conversations,
    "prompt": _completed,
}
_ENVS = {
    "chosen": "preference",
    "messages": "chat",
    "conversations": "sharegpt",
    "prompt": "completion",
}  # the world of tasks without one


def of_parquet(path: Path, columns: Collection[str], rows: Iterator[Mapping[str, Any]]) -> Iterator[Conversation]:
    """Yields a conversation for each row of a table. Values that are null are left out, as rows have all columns."""
    if shape_of(columns) is None:
        raise RecordError(
            f"{path} has the columns {', '.join(columns)[:120]}: expected 'messages', 'conversations', 'chosen' and "
            "'rejected', or 'prompt' and 'completion', or a file that `sojourn export` wrote"
        )
    for row, values in enumerate(rows, 1):
        yield from conversations(_without_nulls(values), f"{path}: row {row}")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
