"""Users that a language model plays, asked over an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sojourn.config.toml import refuse_secret
from sojourn.errors import ConfigError, InfrastructureError

STOP = "###STOP###"
PART = """You play a customer who talks with a service agent. Write only what the customer says next, one or two
sentences. Do not give away everything at once: answer what you are asked. Do not invent anything that is not below; say
that you do not know it. Answer yes or no when you are asked to confirm. When you have what you came for, or know that
you will not get it, write {stop}.

What you want and know:
{instructions}"""


class Answer(NamedTuple):
    """What an endpoint said: the message as it sent it, and how many tokens it says that it sampled."""

    message: Mapping[str, Any]
    tokens: int = 0


@dataclass(frozen=True)
class Endpoint:
    """Where chat completions are to be had. `key` is the name of the environment variable that holds a key, if any;
    `who` is what answers there, in the words of an error."""

    base_url: str
    model: str
    key: str = ""
    timeout_s: float = 60.0
    who: str = "the user's model"

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f'base_url = "{self.base_url}", but user = "llm" needs the address of an OpenAI-compatible server, '
                'such as "http://127.0.0.1:8000/v1"'
            )
        if not self.model:
            raise ConfigError('model = "", but user = "llm" needs the name of a model that the server has')
        if self.key and self.key not in os.environ:
            shown = f'key = "{self.key}"' if re.fullmatch(r"[A-Z][A-Z0-9_]*", self.key) else "key"
            raise ConfigError(
                f"{shown} is no environment variable that is set: give the name of the one that holds the key, such as "
                "OPENAI_API_KEY, never the key itself"
            )
        refuse_secret("base_url", self.base_url)

    async def complete(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of the model's reply; InfrastructureError where there is none."""
        said = (await self.answer(messages)).message.get("content")
        if not isinstance(said, str):
            raise InfrastructureError(f"{self.who} at {self.base_url} said nothing: {said!r}")
        return said.strip()

    async def answer(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> Answer:
        """The model's whole reply; `more` goes into the request. InfrastructureError where there is none."""
        parts = urlsplit(self.base_url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout_s)
        body = {"model": self.model, "messages": list(messages), "temperature": 0, **more}
        try:
            return await asyncio.to_thread(self._ask, connection, f"{parts.path.rstrip('/')}/chat/completions", body)
        except asyncio.CancelledError:
            if connection.sock is not None:
                with contextlib.suppress(OSError):  # it may be closed by now
                    connection.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
            raise

    def _ask(self, connection: http.client.HTTPConnection, path: str, body: Mapping[str, Any]) -> Answer:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {os.environ[self.key]}"
        try:
            connection.request("POST", path, json.dumps(body).encode(), headers)
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                raise InfrastructureError(f"{self.who} answered {response.status}: {text[:200]!r}")
            data = json.loads(text)
            message, usage = data["choices"][0]["message"], data.get("usage")
            if not isinstance(message, dict):
                raise TypeError(f"its message is {message!r:.80}")
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
            raise InfrastructureError(f"{self.who} at {self.base_url} gave no answer: {error!r}") from error
        finally:
            connection.close()
        counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
        return Answer(message, counted if isinstance(counted, int) and counted > 0 else 0)


class SpokenUser:
    """A user whom a model plays from instructions; it sees the talk alone."""

    def __init__(self, endpoint: Endpoint, instructions: str, opening: str = "") -> None:
        self.endpoint = endpoint
        self.talk = [{"role": "system", "content": PART.format(stop=STOP, instructions=instructions)}]
        self.opening = opening
        if opening:
            self.talk.append({"role": "assistant", "content": opening})

    def __deepcopy__(self, memo: dict[int, Any]) -> SpokenUser:
        twin = SpokenUser(self.endpoint, "")
        twin.talk, twin.opening = list(self.talk), self.opening
        return twin

    async def open(self) -> str:
        """What the user says first."""
        if not self.opening:
            self.opening = await self.reply("Hello, how can I help you?")
        return self.opening

    async def reply(self, text: str) -> str:
        said = await self.endpoint.complete([*self.talk, {"role": "user", "content": text}])
        self.talk += [{"role": "user", "content": text}, {"role": "assistant", "content": said}]
        return said
