"""Chat-format JSON lines: `messages` and `tools` as OpenAI's API and the chat templates of transformers have them.

There is one line for every window: a root-to-leaf path of a seat's turns, which is what the model saw in one context.
One line for the whole play of a seat would show a context that no model saw, if its context policy forgets or branches.
An action that could not be parsed is an empty message of `weight` 0 (as in OpenAI's format for fine-tuning), and an
image is the path of its file in the run folder. `reasoning_content`, a thought, is not in OpenAI's format.

Where tools are declared, a call is in `tool_calls` in whatever form it was said, and what the world answered is a
message of the role `tool`. `written_calls` has the texts of those that were said as text, by the index of their
message; when such a line is imported, they are read as they were said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sojourn.codec import to_plain
from sojourn.record.export import exact
from sojourn.record.export.conversations import (
    MALFORMED,
    Conversation,
    Utterance,
    malformed,
    tools_of,
    utterances,
    with_structured_calls,
)
from sojourn.record.export.foreign import EXAMPLES
from sojourn.record.export.foreign import conversations as foreign_conversations
from sojourn.record.export.json_lines import read_records, to_line
from sojourn.record.export.selection import PlayedEpisode, SelectedEpisodes, windows
from sojourn.types import Group, Message, Role, Tool, ToolCall

UNIT = "line"
SUFFIX = ".chat.jsonl"  # of the names of its files


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
    unread = {n for n in turns if trajectory.turns[n].message is None}
    said = utterances(trajectory, turns)
    messages = with_structured_calls([one.message for one in said], tools)
    changed = [place for place, one in enumerate(said) if one.message != messages[place]]
    written = {str(place): said[place].message.text for place in changed if said[place].message.role is Role.ASSISTANT}
    return {
        "messages": _messages([Utterance(m, one.turn) for m, one in zip(messages, said, strict=True)], unread),
        **({"tools": [_tool(tool) for tool in tools]} if tools else {}),
        **({"written_calls": written} if written else {}),
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
        **exact.origin_json(played),
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
    """Yields groups from what `sojourn export --tokens` wrote, unless `render` is set, and else conversations, of any
    shape that `foreign` knows."""
    groups = exact.Groups()
    for where, record in read_records(path):
        if "sojourn" not in record or render:
            yield from foreign_conversations(record, where)
            continue
        try:
            groups.add({"run": record.get("run", ""), **record["sojourn"]})
        except MALFORMED as error:
            raise malformed(where, error, EXAMPLES["messages"]) from error
    yield from groups
