"""Reads messages and tools in the form of OpenAI's API, which the chat templates of transformers share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sojourn.record.export.conversations import converted
from sojourn.types import Message, Role, Tool, ToolCall


def message_of(data: Mapping[str, Any]) -> Message:
    """Returns the message that an object with `role` and `content` or `tool_calls` holds."""
    role = {"developer": "system", "function": "tool"}.get(data["role"], data["role"])
    if role not in list(Role):
        raise ValueError(f"role is {str(role)[:40]!r}, which is none of {', '.join(Role)}")
    if "content" not in data and "tool_calls" not in data:
        raise KeyError("content")
    text, images = _content(data.get("content"))
    answers = data.get("tool_call_id", data.get("name")) if role == "tool" else data.get("tool_call_id")
    return Message(
        role=Role(role),
        text=text,
        thought=str(data.get("reasoning_content") or ""),
        images=images,
        calls=tuple(converted("tool_calls", data.get("tool_calls") or [], _tool_call)),
        answers=None if answers is None else str(answers),
    )


def _content(content: Any) -> tuple[str, tuple[str, ...]]:
    """Returns the text and the images of a message's content, which is a text or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", ()
    if not isinstance(content, list):
        raise ValueError(f"content is {str(content)[:40]!r}, neither a text nor a list of parts")
    texts: list[str] = []
    images: list[str] = []
    for part in content:
        if part["type"] == "text":
            texts.append(text_of(part, "text"))
        elif part["type"] == "image_url":
            images.append(part["image_url"]["url"].removeprefix("blobs/"))
        else:
            raise ValueError(f"a part of type {part['type']!r}, which is neither text nor image_url")
    return "\n".join(texts), tuple(images)


def _tool_call(data: Mapping[str, Any]) -> ToolCall:
    return call_of(data["function"], str(data.get("id") or ""))


def call_of(function: Mapping[str, Any], id: str = "") -> ToolCall:
    """Returns the call of a function with its `name` and `arguments`, which are an object or its JSON text."""
    arguments = function.get("arguments") or {}
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, Mapping):
        raise ValueError(f"the arguments of a call are {str(arguments)[:40]!r}, not an object")
    return ToolCall(text_of(function, "name"), arguments, id)


def tool_of(data: Mapping[str, Any]) -> Tool:
    """Returns the tool that `{"type": "function", "function": {...}}` declares, or its inner object alone."""
    function = data.get("function", data)
    return Tool(text_of(function, "name"), function.get("description") or "", function.get("parameters") or {})


def text_of(data: Mapping[str, Any], key: str) -> str:
    """Returns the text under a key. Raises `KeyError` where it is missing and `ValueError` where it is no text."""
    if not isinstance(data[key], str):
        raise ValueError(f"{key} is {str(data[key])[:40]!r}, not a text")
    return data[key]
