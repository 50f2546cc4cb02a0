"""Agent Data Protocol: one trajectory a line, as actions and observations (Song et al. 2025, arXiv:2510.24702).

The schema is 1.2.0 of the protocol's repository, with its rules for tool calls. There is one line for every path that a
seat took in its world, whatever its contexts held. The text of an action is a `message_action`, a tool call an
`api_action` (with the text beside it as `description`), and a thought is `reasoning_content`. An observation is a
`text_observation`, from the `environment` if it is a system prompt or the answer of a tool. `code_action` is not
written, since only a world knows which text is code, nor `web_observation`, since worlds describe pages in words. All
else is in `details`, whose values are text: `sojourn` has the turns with all tokens, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from sojourn.codec import from_plain, to_plain
from sojourn.record.export import exact
from sojourn.record.export.conversations import (
    MALFORMED,
    Conversation,
    foreign_task,
    is_task,
    malformed,
    number,
    with_structured_calls,
)
from sojourn.record.export.json_lines import read_records, to_line
from sojourn.record.export.selection import PlayedEpisode, SelectedEpisodes, paths_in_world
from sojourn.types import Group, Message, Role, Task, ToolCall, Trajectory, Turn

UNIT = "line"
SUFFIX = ".adp.jsonl"  # of the names of its files
SCHEMA = "1.2.0"
EXPECTED = 'a trajectory of the Agent Data Protocol: {"id": "...", "content": [{"class_": "text_observation", ...}]}'
ACTIONS = ("message_action", "api_action", "code_action")


def write(path: Path, selected: SelectedEpisodes) -> int:
    count = 0
    with path.open("w", encoding="ascii") as file:
        for played in selected.without_failures():
            for seat, trajectory in enumerate(played.record.episode.trajectories):
                for place, turns in enumerate(paths_in_world(trajectory)):
                    file.write(to_line(_line(selected, played, seat, place, turns)))
                    count += 1
    return count


def _line(
    selected: SelectedEpisodes, played: PlayedEpisode, seat: int, place: int, turns: Sequence[int]
) -> dict[str, Any]:
    episode = played.record.episode
    trajectory = episode.trajectories[seat]
    facts = {
        "run": selected.name,
        "model": selected.model,
        "task": {"id": episode.task.id, **to_plain(episode.task)},
        "reward": played.reward(seat),
        "success": trajectory.success,
        "ending": trajectory.ending,
        "sojourn": exact.episode_json(played.entry, episode, seat, turns),
    }
    return {
        "schema_version": SCHEMA,
        "id": f"{selected.name}/{episode.id}/{trajectory.agent}/{place}",
        "content": _content(trajectory, turns),
        "details": {key: value if isinstance(value, str) else json.dumps(value) for key, value in facts.items()},
    }


def _content(trajectory: Trajectory, turns: Sequence[int]) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []  # of the turn before, which this turn's observation answers
    for place, turn in enumerate(_structured([trajectory.turns[n] for n in turns])):
        content += _observations(turn.observed, calls)
        actions = _actions(turn)
        content += actions
        calls = [action for action in actions if action["class_"] == "api_action"]
        for count, call in enumerate(calls):
            call["tool_call_id"] = f"call_{place}_{count}"
        if place == len(turns) - 1:
            _unlink(calls)
    return content


def _structured(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Yields the turns with calls that were written as text as structured ones."""
    tools = {tool.name: tool for turn in turns for tool in turn.tools}
    said = [message for turn in turns for message in (*turn.observed, turn.message or Message(Role.ASSISTANT))]
    messages = iter(with_structured_calls(said, tuple(tools.values())))
    for turn in turns:
        observed = tuple(islice(messages, len(turn.observed)))
        message = next(messages)
        yield replace(turn, observed=observed, message=message if turn.message is not None else None)


def _observations(observed: Sequence[Message], calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the observations, and links the last calls to one each, since no call may lack its observation."""
    content = [observation for message in observed for observation in _observed(message)]
    first = max(len(calls) - len(content), 0)
    for call, observation in zip(calls[first:], content, strict=False):
        observation["tool_call_id"] = call["tool_call_id"]
    _unlink(calls[:first])
    return content


def _unlink(calls: Sequence[dict[str, Any]]) -> None:
    for call in calls:
        del call["tool_call_id"]


def _observed(message: Message) -> Iterator[dict[str, Any]]:
    for image in message.images:
        yield {"class_": "image_observation", "content": f"blobs/{image}", "source": "environment"}
    source = {Role.USER: "user", Role.ASSISTANT: "agent"}.get(message.role, "environment")
    yield {"class_": "text_observation", "content": message.text, "name": str(message.role), "source": source}


def _actions(turn: Turn) -> list[dict[str, Any]]:
    message = turn.message or Message(Role.ASSISTANT)
    thought = {"reasoning_content": message.thought} if message.thought else {}
    if not message.calls:
        actions = [{"class_": "message_action", "content": message.text, "description": None}]
    else:
        actions = [
            {"class_": "api_action", "function": call.name, "kwargs": dict(call.arguments), "description": None}
            for call in message.calls
        ]
        actions[0]["description"] = message.text or None
    actions[0] |= thought
    actions[-1]["reward"] = turn.reward
    return actions


def read(path: Path, *, render: bool = False) -> Iterator[Group | Conversation]:
    """Yields groups from lines that `sojourn export` wrote, unless `render` is set, and conversations from others."""
    groups = exact.Groups()
    for where, data in read_records(path):
        try:
            details = data.get("details") or {}
            if "sojourn" in details and not render:
                groups.add({"run": details.get("run", ""), **json.loads(details["sojourn"])})
            else:
                yield _conversation(data, details, where)
        except MALFORMED as error:
            raise malformed(where, error, EXPECTED) from error
    yield from groups


def _conversation(data: Mapping[str, Any], details: Mapping[str, Any], where: str) -> Conversation:
    messages: list[Message] = []
    rewards: dict[int, float] = {}
    last = ""
    for item in data["content"]:
        kind = item["class_"]
        message = _action(item) if kind in ACTIONS else _observation(item)
        if kind == "api_action" == last and not message.text and not message.thought:
            messages[-1] = _with_calls(messages[-1], message.calls)  # of the same turn
        else:
            messages.append(message)
        last = kind
        if kind in ACTIONS and item.get("reward") is not None:
            rewards[len(messages) - 1] = number(item["reward"])
    if not messages:
        raise ValueError("its content is empty")
    spoken = [place for place, message in enumerate(messages) if message.role is Role.ASSISTANT]
    return Conversation(
        where=where,
        messages=tuple(messages),
        imitated=frozenset(place for place in spoken if messages[place].text or messages[place].calls),
        reward=0.0 if rewards else _detail(details, "reward", number, 0.0),
        success=_detail(details, "success", bool, None),
        task=_task(details, messages[: spoken[0]] if spoken else messages),
        rewards=rewards,
    )


def _with_calls(message: Message, calls: tuple[ToolCall, ...]) -> Message:
    return Message(message.role, message.text, message.thought, calls=message.calls + calls)


def _action(item: Mapping[str, Any]) -> Message:
    thought, text = item.get("reasoning_content") or "", item.get("description") or ""
    if item["class_"] == "api_action":
        call = ToolCall(item["function"], dict(item["kwargs"]), item.get("tool_call_id") or "")
        return Message(Role.ASSISTANT, text, thought, calls=(call,))
    if item["class_"] == "code_action":
        before = f"{text}\n\n" if text else ""
        return Message(Role.ASSISTANT, f"{before}```{item['language']}\n{item['content']}\n```", thought)
    return Message(Role.ASSISTANT, item["content"], thought)


def _observation(item: Mapping[str, Any]) -> Message:
    answers = item.get("tool_call_id")
    match item["class_"]:
        case "text_observation":
            known = item.get("name") in list(Role)
            role = Role(item["name"]) if known else Role.TOOL if answers else Role.USER
            return Message(role, item["content"], answers=answers if role is Role.TOOL else None)
        case "image_observation":
            return Message(Role.USER, images=(item["content"].removeprefix("blobs/"),))
        case "web_observation":
            return Message(Role.USER, item.get("axtree") or item.get("html") or item.get("url") or "")
        case other:
            raise ValueError(f"an item of class {str(other)[:40]!r}")


def _task(details: Mapping[str, Any], beginning: Sequence[Message]) -> Task:
    task = _detail(details, "task", lambda value: value, None)
    return from_plain(task, Task) if is_task(task) else foreign_task("adp", beginning)


def _detail(details: Mapping[str, Any], key: str, convert: Any, default: Any) -> Any:
    """Returns a detail that is JSON in a text, as we write them; `default` for what another program put there."""
    try:
        return convert(json.loads(details[key]))
    except (KeyError, TypeError, ValueError):
        return default
