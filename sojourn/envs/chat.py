"""Users that a language model plays, asked over an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sojourn.errors import ConfigError, InfrastructureError

STOP = "###STOP###"
PART = """You play a customer who talks with a service agent. Write only what the customer says next, one or two
sentences. Do not give away everything at once: answer what you are asked. Do not invent anything that is not below; say
that you do not know it. Answer yes or no when you are asked to confirm. When you have what you came for, or know that
you will not get it, write {stop}.

What you want and know:
{instructions}"""


@dataclass(frozen=True)
class Endpoint:
    """Where chat completions are to be had. `key` is the name of the environment variable that holds a key, if any."""

    base_url: str
    model: str
    key: str = ""
    timeout_s: float = 60.0

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
            raise ConfigError(f'key = "{self.key}", but there is no environment variable of this name: set it')

    async def complete(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The model's reply; InfrastructureError where there is none."""
        parts = urlsplit(self.base_url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout_s)
        try:
            return await asyncio.to_thread(
                self._ask, connection, f"{parts.path.rstrip('/')}/chat/completions", messages
            )
        except asyncio.CancelledError:
            if connection.sock is not None:
                with contextlib.suppress(OSError):  # it may be closed by now
                    connection.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
            raise

    def _ask(self, connection: http.client.HTTPConnection, path: str, messages: Sequence[Mapping[str, str]]) -> str:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {os.environ[self.key]}"
        body: dict[str, Any] = {"model": self.model, "messages": list(messages), "temperature": 0}
        try:
            connection.request("POST", path, json.dumps(body).encode(), headers)
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                raise InfrastructureError(f"the user's model answered {response.status}: {text[:200]!r}")
            said = json.loads(text)["choices"][0]["message"]["content"]
        except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError) as error:
            raise InfrastructureError(f"the user's model at {self.base_url} gave no answer: {error!r}") from error
        finally:
            connection.close()
        if not isinstance(said, str):
            raise InfrastructureError(f"the user's model at {self.base_url} said nothing: {said!r}")
        return said.strip()


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
