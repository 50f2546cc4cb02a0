"""A model behind an OpenAI-compatible endpoint in the seat: it is told the whole talk, as chat messages."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sojourn.arena.text_seat import TextReply, TextSeat
from sojourn.envs.chat import Endpoint
from sojourn.errors import ConfigError
from sojourn.protocols import AgentContext, EnvFamily
from sojourn.rollout.play import Limits
from sojourn.types import Message, Observation, Role, Tool, ToolCall

CONNECT_S = 5.0
IMAGES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}


@dataclass
class Remote:
    """Asks the endpoint for each action, at temperature 0."""

    name: str
    endpoint: Endpoint

    @classmethod
    def at(cls, address: str, key: str = "") -> Remote:
        """By its address and, behind a #, the model's name: http://127.0.0.1:8000/v1#model."""
        url, _, model = address.partition("#")
        if not model or not _has_host(url):
            raise ConfigError(
                f"--operator {address}: an endpoint is named by its address and its model, such as "
                "http://127.0.0.1:8000/v1#my-model"
            )
        return cls(model.rpartition("/")[2] or model, Endpoint(url, model, key, who=f"the endpoint of {model}"))

    async def open(self, family: EnvFamily, limits: Limits) -> None:
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
        return TextSeat(context.name, RemoteVoice(self.endpoint, env), context.trainable)

    async def close(self) -> None: ...


@dataclass
class RemoteVoice:
    """One talk with the endpoint."""

    endpoint: Endpoint
    env: Any
    talk: list[dict[str, Any]] = field(default_factory=list)
    tools: tuple[Tool, ...] = ()
    pending: list[ToolCall] = field(default_factory=list)  # calls that the world has not answered yet

    async def reply(self, observation: Observation) -> TextReply:
        self.tools = observation.tools or self.tools
        self._hear((*observation.system, *observation.messages))
        more = {"tools": [_declared(tool) for tool in self.tools]} if self.tools else {}
        answer = await self.endpoint.answer(self.talk, **more)
        text = answer.message.get("content")
        thought, said = _parted(text if isinstance(text, str) else "")
        calls, fault = _calls(answer.message.get("tool_calls"))
        self.talk.append({"role": "assistant", "content": said, **_called(calls)})
        self.pending = calls
        if fault:
            return TextReply(None, answer.tokens, fault)
        return TextReply(Message(Role.ASSISTANT, said, thought, calls=tuple(calls)), answer.tokens)

    def _hear(self, messages: Sequence[Message]) -> None:
        """Every call is answered first, as servers ask for: one that was refused is answered by what follows."""
        answered = {message.answers for message in messages if message.role is Role.TOOL}
        for call in self.pending:
            if not {call.id, call.name} & answered:
                self.talk.append({"role": "tool", "tool_call_id": call.id, "content": "not carried out"})
        self.talk += [self._told(message) for message in messages]
        self.pending = []

    def _told(self, message: Message) -> dict[str, Any]:
        if message.role is Role.TOOL:
            for call in self.pending:
                if message.answers in (call.id, call.name):
                    return {"role": "tool", "tool_call_id": call.id, "content": message.text}
        role = "user" if message.role is Role.TOOL else message.role.value
        blobs: Mapping[str, bytes] = getattr(self.env, "blobs", {})
        shown = [_picture(blobs[digest]) for digest in message.images if digest in blobs]
        return {"role": role, "content": [{"type": "text", "text": message.text}, *shown] if shown else message.text}


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _declared(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _called(calls: Sequence[ToolCall]) -> dict[str, Any]:
    if not calls:
        return {}
    made = [{"name": call.name, "arguments": json.dumps(dict(call.arguments))} for call in calls]
    pairs = zip(calls, made, strict=True)
    return {"tool_calls": [{"id": call.id, "type": "function", "function": function} for call, function in pairs]}


def _calls(sent: Any) -> tuple[list[ToolCall], str]:
    """The calls of a reply, and what is wrong with them, for the model to read."""
    calls: list[ToolCall] = []
    for number, one in enumerate(sent if isinstance(sent, list) else ()):
        try:
            name, arguments = one["function"]["name"], json.loads(one["function"]["arguments"] or "{}")
        except (ValueError, LookupError, TypeError) as error:
            return [], f"a call could not be read ({error}): give a name, and the arguments as a JSON object"
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return [], f"the call of {name!r:.60} could not be read: give its arguments as a JSON object"
        calls.append(ToolCall(name, arguments, str(one.get("id") or f"call{number}")))
    return calls, ""


def _parted(text: str) -> tuple[str, str]:
    """The thought that a reply begins with, if any, and the rest."""
    thought, mark, said = text.partition("</think>")
    return (thought.replace("<think>", "").strip(), said.strip()) if mark else ("", text.strip())


def _picture(data: bytes) -> dict[str, Any]:
    kind = next((kind for head, kind in IMAGES.items() if data.startswith(head)), "image/png")
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}}
