"""An operator of the arena that asks an OpenAI-compatible endpoint; it sends the whole conversation each time."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sojourn.abilities import blobs_of
from sojourn.agents.conversation import split_thought
from sojourn.agents.text_seat import TextReply, TextSeat
from sojourn.errors import ConfigError
from sojourn.models.endpoint import Endpoint
from sojourn.protocols import AgentContext, EnvFamily
from sojourn.rollout.limits import Limits
from sojourn.types import Message, Observation, Role, Tool, ToolCall

CONNECT_S = 5.0
IMAGES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}


@dataclass
class RemoteOperator:
    """Asks the endpoint for each action, at temperature 0."""

    name: str
    endpoint: Endpoint

    @classmethod
    def at(cls, address: str, key: str = "") -> RemoteOperator:
        """Returns the operator of an address with a model's name behind a #: http://127.0.0.1:8000/v1#model."""
        url, _, model = address.partition("#")
        if not model or not _has_host(url):
            raise ConfigError(
                f"--operator {address}: an endpoint is named by its address and its model, such as "
                "http://127.0.0.1:8000/v1#my-model"
            )
        return cls(model.rpartition("/")[2] or model, Endpoint(url, model, key, name=f"the endpoint of {model}"))

    async def open(self, family: EnvFamily, limits: Limits) -> None:
        """Raises ConfigError where nothing listens at the address, before the match begins."""
        parts = urlsplit(self.endpoint.base_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(parts.hostname, port)
        except (OSError, TimeoutError) as error:
            raise ConfigError(
                f"--operator {self.endpoint.base_url}#{self.endpoint.model}: nothing answers at {parts.hostname} port "
                f"{port} ({error or 'no answer in time'}): start the server, or correct the address"
            ) from error
        writer.close()

    def seat(self, context: AgentContext, env: Any) -> TextSeat:
        return TextSeat(context.name, RemoteSpeaker(self.endpoint, env), context.trainable)

    async def close(self) -> None: ...


@dataclass
class RemoteSpeaker:
    """One conversation with the endpoint: `messages` are in OpenAI's format, and `pending` are the tool calls that the
    environment has not answered yet."""

    endpoint: Endpoint
    env: Any
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: tuple[Tool, ...] = ()
    pending: list[ToolCall] = field(default_factory=list)

    async def reply(self, observation: Observation) -> TextReply:
        self.tools = observation.tools or self.tools
        self._add((*observation.system, *observation.messages))
        options = {"tools": [_tool_schema(tool) for tool in self.tools]} if self.tools else {}
        reply, tokens, _ = await self.endpoint.complete(self.messages, **options)
        content = reply.get("content")
        thought, text = split_thought(content if isinstance(content, str) else "")
        calls, fault = _parse_calls(reply.get("tool_calls"))
        self.messages.append({"role": "assistant", "content": text, **_call_fields(calls)})
        self.pending = calls
        if fault:
            return TextReply(None, tokens, fault)
        return TextReply(Message(Role.ASSISTANT, text, thought, calls=tuple(calls)), tokens)

    def _add(self, messages: Sequence[Message]) -> None:
        """Adds what the environment answers. A call that it refused is answered first, as servers want an answer to
        every call; the reason follows as a message."""
        answered = {message.answers for message in messages if message.role is Role.TOOL}
        for call in self.pending:
            if not {call.id, call.name} & answered:
                self.messages.append({"role": "tool", "tool_call_id": call.id, "content": "not carried out"})
        self.messages += [self._encoded(message) for message in messages]
        self.pending = []

    def _encoded(self, message: Message) -> dict[str, Any]:
        """Returns a message in OpenAI's format, with its images; an answer to no pending call is the user's."""
        if message.role is Role.TOOL:
            for call in self.pending:
                if message.answers in (call.id, call.name):
                    return {"role": "tool", "tool_call_id": call.id, "content": message.text}
        role = "user" if message.role is Role.TOOL else message.role.value
        blobs = blobs_of(self.env)
        images = [_image(blobs[digest]) for digest in message.images if digest in blobs]
        return {"role": role, "content": [{"type": "text", "text": message.text}, *images] if images else message.text}


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _tool_schema(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _call_fields(calls: Sequence[ToolCall]) -> dict[str, Any]:
    """Returns the field of a message that holds its tool calls; nothing where it has none."""
    if not calls:
        return {}
    functions = [{"name": call.name, "arguments": json.dumps(dict(call.arguments))} for call in calls]
    pairs = zip(calls, functions, strict=True)
    return {"tool_calls": [{"id": call.id, "type": "function", "function": function} for call, function in pairs]}


def _parse_calls(sent: Any) -> tuple[list[ToolCall], str]:
    """Returns the tool calls of a reply, and an error message for the model where one cannot be read."""
    calls: list[ToolCall] = []
    for number, call in enumerate(sent if isinstance(sent, list) else ()):
        try:
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"] or "{}")
        except (ValueError, LookupError, TypeError) as error:
            return [], f"a call could not be read ({error}): give a name, and the arguments as a JSON object"
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return [], f"the call of {name!r:.60} could not be read: give its arguments as a JSON object"
        calls.append(ToolCall(name, arguments, str(call.get("id") or f"call{number}")))
    return calls, ""


def _image(data: bytes) -> dict[str, Any]:
    kind = next((kind for head, kind in IMAGES.items() if data.startswith(head)), "image/png")
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}}
