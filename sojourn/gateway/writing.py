"""What the APIs write alike: server-sent events, calls, logprobs, and replies that come as a series of blocks."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sojourn.gateway.requests import Delta, Kind, Reply, RequestError, Told
from sojourn.types import Message, ToolCall


def frame(data: Mapping[str, Any], event: str = "") -> str:
    """Returns a server-sent event; without a name where the API gives it none."""
    named = f"event: {event}\n" if event else ""
    return f"{named}data: {json.dumps(data, ensure_ascii=False)}\n\n"


def arguments_text(call: ToolCall) -> str:
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def token_logprobs(reply: Reply) -> list[dict[str, Any]]:
    """Returns the logprobs of the tokens of the text, as both APIs of OpenAI write them: those of the thought, of calls
    and of what ends the reply are not listed, so that clients can lay the tokens over the text that they were told."""
    logprobs, parts = reply.sample.logprobs.tolist(), reply.parts
    tokens = ((parts.pieces[at], logprobs[at]) for at in parts.text)
    return [
        {"token": piece.decode(errors="replace"), "logprob": logprob, "bytes": list(piece), "top_logprobs": []}
        for piece, logprob in tokens
    ]


def openai_error(error: RequestError) -> Mapping[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": error.param or None, "code": error.code}}


def has_text(message: Message) -> bool:
    """Returns whether a reply has a block of text: an empty one, too, where it would otherwise end without any."""
    return bool(message.text) or not message.calls


@dataclass
class BlockStream(ABC):
    """Writes the stream of an API in which a reply is blocks, one after another: a thought, a text, then each call."""

    told: Told = field(default_factory=Told)
    kind: Kind | None = None  # of the block that is open
    text: str = ""  # that the open block has so far

    def delta(self, delta: Delta) -> Iterator[str]:
        if self.kind != delta.kind:
            yield from self._open(delta.kind)
        self.told.add(delta)
        self.text += delta.text
        yield self.piece(delta)

    def end(self, replies: Sequence[Reply]) -> Iterator[str]:
        (reply,) = replies
        for delta in self.told.rest(reply.message.thought, reply.message.text):
            yield from self.delta(delta)
        if self.kind != "text" and has_text(reply.message):
            yield from self._open("text")
        yield from self._close()
        for number, call in enumerate(reply.message.calls):
            yield from self.called(number, call)
        yield from self.finished(reply)

    def _open(self, kind: Kind) -> Iterator[str]:
        yield from self._close()
        self.kind, self.text = kind, ""
        yield from self.opened(kind)

    def _close(self) -> Iterator[str]:
        if self.kind is not None:
            yield from self.closed(self.kind)
        self.kind = None

    @abstractmethod
    def opened(self, kind: Kind) -> Iterator[str]: ...

    @abstractmethod
    def piece(self, delta: Delta) -> str: ...

    @abstractmethod
    def closed(self, kind: Kind) -> Iterator[str]: ...

    @abstractmethod
    def called(self, number: int, call: ToolCall) -> Iterator[str]: ...

    @abstractmethod
    def finished(self, reply: Reply) -> Iterator[str]: ...
