"""Tasks, messages and tools as JSON, and back: what every record and every export holds of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from sojourn.errors import RecordError
from sojourn.types import Message, Role, Task, Tool, ToolCall


def message_json(message: Message) -> dict[str, Any]:
    data: dict[str, Any] = {"role": message.role, "text": message.text}
    if message.thought:
        data["thought"] = message.thought
    if message.images:
        data["images"] = list(message.images)
    if message.calls:
        data["calls"] = [{"name": c.name, "arguments": dict(c.arguments), "id": c.id} for c in message.calls]
    if message.answers is not None:
        data["answers"] = message.answers
    return data


def message_of(data: Mapping[str, Any]) -> Message:
    return Message(
        role=Role(data["role"]),
        text=data["text"],
        thought=data.get("thought", ""),
        images=tuple(data.get("images", ())),
        calls=tuple(ToolCall(c["name"], c["arguments"], c["id"]) for c in data.get("calls", ())),
        answers=data.get("answers"),
    )


def task_json(task: Task) -> dict[str, Any]:
    return {
        "env": task.env,
        "data": dict(task.data),
        "seed": task.seed,
        "split": task.split,
        "tags": list(task.tags),
    }


def task_of(data: Mapping[str, Any]) -> Task:
    return Task(data["env"], data["data"], data["seed"], data["split"], tuple(data["tags"]))


def tool_json(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def tool_of(data: Mapping[str, Any]) -> Tool:
    return Tool(data["name"], data["description"], data["parameters"])


def as_json(value: Any) -> bytes:
    return json.dumps(value, default=_plain).encode()


def _plain(value: Any) -> Any:
    """Numbers that numpy made are kept as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise RecordError(f"{value!r} is a {type(value).__name__}, which JSON cannot hold: task data and info must be JSON")
