"""Chat-format JSON lines: `messages` and `tools` as OpenAI's API and the chat templates of transformers have them.

There is one line for every window: a root-to-leaf path of a seat's turns, which is what the model saw in one context.
One line for the whole play of a seat would show a context that no model saw, if its context policy forgets or branches.
An action that could not be parsed is an empty message of `weight` 0 (as in OpenAI's format for fine-tuning), and an
image is the path of its file in the run folder. `reasoning_content`, a thought, is not in OpenAI's format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sojourn.codec import from_plain, to_plain
from sojourn.record.export import exact
from sojourn.record.export.conversations import (
    Conversation,
    Utterance,
    foreign_task,
    is_task,
    malformed,
    number,
    tools_of,
    utterances,
)
from sojourn.record.export.json_lines import read_lines, to_line
from sojourn.record.export.selection import PlayedEpisode, SelectedEpisodes, windows
from sojourn.types import Group, Message, Role, Task, Tool, ToolCall

UNIT = "line"
SUFFIX = ".chat.jsonl"  # of the names of its files
EXPECTED = 'messages in the chat format, such as {"messages": [{"role": "user", "content": "..."}, ...]}'


def write(path: Path, selected: SelectedEpisodes) -> int:
    count = 0
    with path.open("w", encoding="ascii") as file:
        for played in selected.without_failures():
            for seat, trajectory in enumerate(played.record.episode.trajectories):
                for place, turns in enumerate(windows(trajectory)):
                    file.write(to_line(_line(selected, played, seat, place, turns)))
                    count += 1
    return count


def _line(
    selected: SelectedEpisodes, played: PlayedEpisode, seat: int, window: int, turns: Sequence[int]
) -> dict[str, Any]:
    entry, episode = played.entry, played.record.episode
    trajectory = episode.trajectories[seat]
    versions = [trajectory.turns[turn].sample.versions for turn in turns]
    tools = tools_of(trajectory, turns)
    return {
        "messages": _messages(utterances(trajectory, turns), {n for n in turns if trajectory.turns[n].message is None}),
        **({"tools": [_tool(tool) for tool in tools]} if tools else {}),
        "reward": played.reward(seat),
        "success": trajectory.success,
        "task": {"id": episode.task.id, **to_plain(episode.task)},
        "weights": {
            "model": selected.model,
            "oldest": min(version.oldest for version in versions),
            "newest": max(version.newest for version in versions),
        },
        "run": selected.name,
        **exact.place_json(entry),
        "episode": episode.id,
        "agent": trajectory.agent,
        "trainable": trajectory.trainable,
        "ending": trajectory.ending,
        "window": window,
        **({"sojourn": exact.episode_json(entry, episode, seat, turns)} if selected.selection.tokens else {}),
    }


def _messages(conversation: Sequence[Utterance], unread: set[int]) -> list[dict[str, Any]]:
    """Returns the messages in OpenAI's format; every tool call gets an id, which its answer names."""
    messages: list[dict[str, Any]] = []
    waiting: list[tuple[ToolCall, str]] = []  # calls that have no answer yet
    for place, (message, turn) in enumerate(conversation):
        if message.calls:
            waiting = [(call, call.id or f"call_{place}_{n}") for n, call in enumerate(message.calls)]
        data = _message(message, waiting)
        if turn in unread:
            data["weight"] = 0
        messages.append(data)
    return messages


def _message(message: Message, waiting: list[tuple[ToolCall, str]]) -> dict[str, Any]:
    images = [{"type": "image_url", "image_url": {"url": f"blobs/{image}"}} for image in message.images]
    content = [*images, {"type": "text", "text": message.text}] if images else message.text
    data: dict[str, Any] = {"role": message.role, "content": content}
    if message.thought:
        data["reasoning_content"] = message.thought
    if message.calls:
        data["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(dict(c.arguments))}}
            for c, id in waiting
        ]
    if message.role is Role.TOOL:
        data["tool_call_id"] = _answered(message, waiting)
    return data


def _answered(message: Message, waiting: list[tuple[ToolCall, str]]) -> str:
    """Returns the id of the call that a message answers: the one that it names, else the first without an answer."""
    for place, (call, id) in enumerate(waiting):
        if message.answers in (call.id, call.name, None):
            del waiting[place]
            return id
    return message.answers or ""


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def read(path: Path, *, render: bool = False) -> Iterator[Group | Conversation]:
    """Yields groups from lines that `sojourn export --tokens` wrote, unless `render` is set, and else conversations."""
    groups = exact.Groups()
    for line, data in read_lines(path):
        where = f"{path}:{line}"
        try:
            if "sojourn" in data and not render:
                groups.add(data["sojourn"])
            else:
                yield _conversation(data, where)
        except exact.MALFORMED as error:
            raise malformed(where, error, EXPECTED) from error
    yield from groups


def _conversation(data: Mapping[str, Any], where: str) -> Conversation:
    plain = data["messages"]
    if not isinstance(plain, list) or not plain:
        raise ValueError(f"messages is {str(plain)[:40]!r}")
    messages = tuple(message_of(message) for message in plain)
    spoken = [place for place, message in enumerate(messages) if message.role is Role.ASSISTANT]
    success = data.get("success")
    return Conversation(
        where=where,
        messages=messages,
        imitated=frozenset(place for place in spoken if plain[place].get("weight", 1) and data.get("trainable", True)),
        tools=tuple(tool_of(tool) for tool in data.get("tools") or ()),
        reward=number(data.get("reward")),
        success=None if success is None else bool(success),
        task=_task(data, messages[: spoken[0]] if spoken else messages),
        agent=str(data.get("agent", "agent")),
    )


def _task(data: Mapping[str, Any], beginning: Sequence[Message]) -> Task:
    task = data.get("task")
    return from_plain(task, Task) if is_task(task) else foreign_task("chat", beginning)


def message_of(data: Mapping[str, Any]) -> Message:
    role = {"developer": "system", "function": "tool"}.get(data["role"], data["role"])
    text, images = _content(data.get("content"))
    answers = data.get("tool_call_id", data.get("name") if role == "tool" else None)
    return Message(
        role=Role(role),
        text=text,
        thought=str(data.get("reasoning_content") or ""),
        images=images,
        calls=tuple(_call(call) for call in data.get("tool_calls") or ()),
        answers=None if answers is None else str(answers),
    )


def _content(content: Any) -> tuple[str, tuple[str, ...]]:
    """Returns the text and the images of a message's content, which is a text or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", ()
    texts: list[str] = []
    images: list[str] = []
    for part in content:
        if part["type"] == "text":
            texts.append(part["text"])
        elif part["type"] == "image_url":
            images.append(part["image_url"]["url"].removeprefix("blobs/"))
        else:
            raise ValueError(f"a part of type {part['type']!r}, which is neither text nor image_url")
    return "\n".join(texts), tuple(images)


def _call(data: Mapping[str, Any]) -> ToolCall:
    function = data["function"]
    arguments = function.get("arguments") or {}
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, Mapping):
        raise ValueError(f"the arguments of a call are {str(arguments)[:40]!r}, not an object")
    return ToolCall(function["name"], arguments, str(data.get("id") or ""))


def tool_of(data: Mapping[str, Any]) -> Tool:
    function = data.get("function", data)
    return Tool(function["name"], function.get("description") or "", function.get("parameters") or {})
