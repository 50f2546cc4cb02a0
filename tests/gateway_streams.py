"""Samplers that tell their tokens one by one, and clients that read a stream as slowly as they like, or leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sojourn.abilities import Tell
from sojourn.gateway.bodies import Limits
from sojourn.gateway.server import Gateway
from sojourn.gateway.session import Session
from sojourn.gateway.sessions import Sessions
from sojourn.protocols import AgentContext
from sojourn.types import Prompt, Sample, SamplingParams
from tests.gateway_sessions import OddSampler, Script, renderer

Pause = Callable[[int], Awaitable[object]]


@dataclass
class TellingSampler(OddSampler):
    """Tells its tokens in batches of `size`; after each it awaits `pause` with the number of tokens told."""

    size: int = 1
    pause: Pause = lambda told: asyncio.sleep(0)

    async def sample_telling(self, prompt: Prompt, params: SamplingParams, tell: Tell) -> Sample:
        sample = await self.sample(prompt, params)
        tokens = sample.tokens.tolist()
        for start in range(0, len(tokens), self.size):
            tell(tokens[start : start + self.size])
            await self.pause(min(start + self.size, len(tokens)))
        return sample


def telling(
    script: Script,
    key: str = "key",
    *,
    thinking: bool = False,
    limits: Limits | None = None,
    room: int = 512,
    **more: Any,
) -> tuple[Gateway, Session, TellingSampler]:
    """Returns a gateway with one session, whose sampler tells its tokens."""
    format = renderer(thinking=thinking)
    sampler = TellingSampler(format, script, **more)
    context = AgentContext(
        name="agent", renderer=format, sampler=sampler, params=SamplingParams(room), max_context=2 * room + 4096
    )
    found, one = Gateway(Sessions(), limits=limits or Limits()), Session(key, context)
    found.sessions.open(one)
    return found, one, sampler


@dataclass
class Client:
    """Sends one request to an application, in this event loop, and takes what comes: all at once, or, where it is
    `slow`, each part when it is allowed to by `take`. `leave` closes its connection."""

    app: Any
    path: str
    body: Mapping[str, Any]
    slow: bool = False
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    parts: list[str] = field(default_factory=list[str])
    status: int = 0

    def __post_init__(self) -> None:
        self._asked, self._content = False, json.dumps(self.body).encode()
        self._left, self._news, self._takes = asyncio.Event(), asyncio.Event(), asyncio.Semaphore(0)
        self.task = asyncio.create_task(self._run())

    def leave(self) -> None:
        self._left.set()

    def take(self, parts: int = 1) -> None:
        for _ in range(parts):
            self._takes.release()

    @property
    def text(self) -> str:
        return "".join(self.parts)

    async def until(self, words: str) -> None:
        """Waits until the words have come."""
        while words not in self.text:
            assert not self.task.done(), self.text
            self._news.clear()
            await self._news.wait()

    async def _run(self) -> None:
        named = {"host": "127.0.0.1", "content-type": "application/json", **self.headers}
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": self.path, "raw_path": self.path.encode(), "query_string": b"", "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        try:
            await self.app(scope, self._receive, self._send)
        finally:
            self._news.set()

    async def _receive(self) -> Mapping[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._content, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        if self.slow:
            await self._takes.acquire()
        self.parts.append(message.get("body", b"").decode())
        self._news.set()


@dataclass(frozen=True)
class Api:
    """Says how one API is asked, and what its answers tell: a thought, a text and calls."""

    path: str
    asked: Callable[[str], Mapping[str, Any]]
    told: Callable[[Sequence[Mapping[str, Any]]], Told]
    whole: Callable[[Mapping[str, Any]], Told]


Told = tuple[str, str, list[tuple[str, str]]]  # the calls by name and arguments


def events(text: str) -> Iterator[Mapping[str, Any]]:
    """Yields the data of all server-sent events of a stream; comments are left out."""
    for block in text.split("\n\n"):
        for line in block.split("\n"):
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


def _chat_told(told: Sequence[Mapping[str, Any]], number: int = 0) -> Told:
    choices = [choice for event in told for choice in event["choices"] if choice["index"] == number]
    return _chat_parts([choice["delta"] for choice in choices])


def _chat_parts(parts: Sequence[Mapping[str, Any]]) -> Told:
    calls = [call["function"] for part in parts for call in part.get("tool_calls", ())]
    thought = "".join(part.get("reasoning_content", "") for part in parts)
    text = "".join(part.get("content") or "" for part in parts)
    return thought, text, [(call["name"], call["arguments"]) for call in calls]


def _messages_told(told: Sequence[Mapping[str, Any]]) -> Told:
    deltas = [event["delta"] for event in told if event["type"] == "content_block_delta"]
    names = [event["content_block"]["name"] for event in told
             if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use"]  # fmt: skip
    arguments = [delta["partial_json"] for delta in deltas if "partial_json" in delta]
    joined = ("".join(delta.get(key, "") for delta in deltas) for key in ("thinking", "text"))
    return *joined, list(zip(names, arguments, strict=True))  # type: ignore[return-value]


def _messages_whole(body: Mapping[str, Any]) -> Told:
    joined = ("".join(block.get(key, "") for block in body["content"]) for key in ("thinking", "text"))
    calls = [
        (b["name"], json.dumps(b["input"], ensure_ascii=False)) for b in body["content"] if b["type"] == "tool_use"
    ]
    return *joined, calls  # type: ignore[return-value]


def _responses_told(told: Sequence[Mapping[str, Any]]) -> Told:
    joined = ("".join(event["delta"] for event in told if event["type"] == f"response.{kind}.delta")
              for kind in ("reasoning_text", "output_text"))  # fmt: skip
    items = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    found = *joined, [(item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]
    assert found == _responses_whole(told[-1]["response"]), "the last event tells all once more"
    return found  # type: ignore[return-value]


def _responses_whole(body: Mapping[str, Any]) -> Told:
    parts = [(item["type"], part["text"]) for item in body["output"] for part in item.get("content", ())]
    joined = ("".join(text for kind, text in parts if kind == wanted) for wanted in ("reasoning", "message"))
    calls = [(item["name"], item["arguments"]) for item in body["output"] if item["type"] == "function_call"]
    return *joined, calls  # type: ignore[return-value]


def _one(key: str, **more: Any) -> Callable[[str], Mapping[str, Any]]:
    return lambda text: {"model": "m", key: [{"role": "user", "content": text}], **more}


CHAT = Api("/s/key/v1/chat/completions",
           _one("messages", tools=[{"type": "function", "function": {"name": "look"}}]), _chat_told,
           lambda body: _chat_parts([body["choices"][0]["message"]]))  # fmt: skip
MESSAGES = Api("/s/key/v1/messages",
               _one("messages", max_tokens=500, tools=[{"name": "look", "input_schema": {"type": "object"}}]),
               _messages_told, _messages_whole)  # fmt: skip
RESPONSES = Api("/s/key/v1/responses", _one("input", tools=[{"type": "function", "name": "look"}]), _responses_told,
                _responses_whole)  # fmt: skip
APIS = {"chat": CHAT, "messages": MESSAGES, "responses": RESPONSES}


def choice_told(text: str, number: int) -> Told:
    """Returns what a stream of chat completions tells of one of several replies."""
    return _chat_told(list(events(text)), number)
