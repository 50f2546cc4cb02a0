"""What the APIs of the gateway have in common: a request for a reply, the reply, and how each API writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from sojourn.errors import SojournError
from sojourn.gateway.parts import Parts
from sojourn.types import Message, Sample, Tool, Turn

Finish = Literal["stop", "length", "calls", "stop_string"]
Kind = Literal["thought", "text"]


FORMATS = frozenset({"response_format", "text.format", "output_config.format"})  # fields, by the APIs
LONGEST = 1000  # characters of an error


class RequestError(SojournError):
    """Says why a request is not answered, with the HTTP `status`, a short `code`, and the field `param` that is at
    fault, if any. The message is for whoever wrote the client. It may quote the request, and is cut if it is long."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request", param: str = "") -> None:
        super().__init__(message if len(message) <= LONGEST else f"{message[:LONGEST]}...")
        self.status, self.code, self.param = status, code, param


@dataclass(frozen=True, kw_only=True)
class Received:
    """Says how a request came, as far as it may be kept: by which API, from which client, and with which body."""

    api: str
    client: str
    body: str


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """Holds what a client asks for, whatever its API is: the next message of a conversation.

    `messages` begin with what the API calls system, developer or instructions. The sampling settings are None where the
    client sent none. `choices` are all replies that its response format allows, where these can be listed. `samples`
    is how many replies it wants, and without `calls` they are texts alone. `namespaces` maps the names of tools that
    its API keeps in a namespace to that; the names begin with it. `unused` names the fields that were read and change
    nothing here, to be counted.
    `received` is None where nothing is to be kept of the request besides its messages.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    namespaces: Mapping[str, str] = field(default_factory=dict[str, str])
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    samples: int = 1
    calls: bool = True
    logprobs: bool = False
    stream: bool = False
    usage_in_stream: bool = False
    model: str = ""
    unused: tuple[str, ...] = ()
    received: Received | None = None

    @property
    def unlisted(self) -> str:
        """Returns the field that asks for a format whose replies cannot be listed; mostly empty."""
        return next((name for name in self.unused if name in FORMATS), "")


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Holds one reply of the model: the turn that was recorded, and the message that the client is told, whose calls
    have ids. `parts` says which of the sampled tokens hold the thought and the text, where one of them is to be told.
    """

    number: int  # of the turn in its session
    turn: Turn
    message: Message
    finish: Finish
    prompt_tokens: int
    cached_tokens: int = 0
    stop_string: str = ""
    parts: Parts = field(default_factory=Parts)

    @property
    def sample(self) -> Sample:
        return self.turn.sample


class Delta(NamedTuple):
    """Holds a piece of a reply while it is sampled, of its thought or of its text. Calls come whole, with the reply.
    `number` says which of several replies it belongs to."""

    kind: Kind
    text: str
    number: int = 0


class ReplyStream(Protocol):
    """Writes the replies to a request as server-sent events, whole frames each: `begin`, any number of `delta`, then
    `end`, which writes what the deltas have not. `failed` ends it with an error."""

    def begin(self) -> Iterator[str]: ...
    def delta(self, delta: Delta) -> Iterator[str]: ...
    def end(self, replies: Sequence[Reply]) -> Iterator[str]: ...
    def failed(self, error: RequestError) -> Iterator[str]: ...


class Api(Protocol):
    """Says how one API writes requests, replies and errors. `read` raises `RequestError` for a body that it cannot
    read."""

    def read(self, body: Mapping[str, Any]) -> ChatRequest: ...
    def whole(self, request: ChatRequest, replies: Sequence[Reply]) -> Mapping[str, Any]: ...
    def stream(self, request: ChatRequest) -> ReplyStream: ...
    def error(self, error: RequestError) -> Mapping[str, Any]: ...


@dataclass
class Told:
    """Holds what a stream has written of the thought and of the text of a reply, the one of this `number`."""

    number: int = 0
    said: dict[Kind, str] = field(default_factory=lambda: {"thought": "", "text": ""})

    def add(self, delta: Delta) -> None:
        self.said[delta.kind] += delta.text

    def rest(self, thought: str, text: str) -> Iterator[Delta]:
        """Yields what was not written yet of a thought and a text. Raises `RequestError` where they do not begin with
        what was written."""
        whole: dict[Kind, str] = {"thought": thought, "text": text}
        for kind, now in whole.items():
            said = self.said[kind]
            if not now.startswith(said):
                raise RequestError(
                    f"the stream has written {said[-60:]!r} at the end of a {kind}, but the reply is {now[-60:]!r}: "
                    "ask again without a stream", status=500, code="stream_differs",
                )  # fmt: skip
            if len(now) > len(said):
                yield Delta(kind, now[len(said) :], self.number)
