"""Where a program finds its episode: the task, the addresses of its model and its world; and how it ended."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sojourn.gateway.service import Service
from sojourn.gateway.world_port import WorldPort
from sojourn.types import Observation

KEPT_BYTES = 1 << 16  # of the end of each output
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Holds what a program is told: `url` is that of its session, whose `key` it may also send as its API key."""

    url: str
    key: str
    model: str
    observation: Observation

    @property
    def base_url(self) -> str:
        """Returns the base URL of OpenAI's clients; Anthropic's is `url`."""
        return f"{self.url}/v1"

    @property
    def mcp_url(self) -> str:
        return f"{self.url}/mcp"

    @property
    def task(self) -> str:
        """Returns the instructions and the first observation as one text. Half a surrogate pair, which is no character,
        is a question mark in it, as it is for the model."""
        seen = self.observation
        text = "\n\n".join(message.text for message in (*seen.system, *seen.messages) if message.text)
        return text.encode(errors="replace").decode()

    def at(self, url: str) -> Job:
        """Returns the job of a program that reaches the gateway at another address, of its server."""
        return replace(self, url=f"{url}/s/{self.key}")

    def filled(self, text: str, **more: str) -> str:
        """Returns a text of a config with the values of its placeholders, of which there are `more`; other braces stay
        as they are, and so do those in the values."""
        known = {"url": self.url, "base_url": self.base_url, "mcp_url": self.mcp_url, "key": self.key,
                 "model": self.model, "task": self.task, **more}  # fmt: skip
        return PLACEHOLDER.sub(lambda found: known.get(found[1], found[0]), text)

    def variables(self) -> Mapping[str, str]:
        """Returns the environment variables by which common clients find the model."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_AUTH_TOKEN": self.key,
            "SOJOURN_URL": self.url,
            "SOJOURN_MCP_URL": self.mcp_url,
            "SOJOURN_MODEL": self.model,
            "SOJOURN_TASK": self.task,
        }


@dataclass
class Tail:
    """Keeps the end of what a program has printed so far."""

    kept: bytes = b""

    def add(self, data: bytes) -> None:
        self.kept = (self.kept + data)[-KEPT_BYTES:]

    @property
    def text(self) -> str:
        return self.kept.decode(errors="replace")


@dataclass(frozen=True)
class Site:
    """Holds what serves the episode of a program, what the program is told of it, and what it has printed. `cdp_socket`
    is that of the browser of its world, where it has one."""

    job: Job
    port: WorldPort
    service: Service
    cdp_socket: str = ""
    output: Tail = field(default_factory=Tail)
    errors: Tail = field(default_factory=Tail)


class Exit(NamedTuple):
    """Says how a program ended: its exit code (0: as it should), and the end of its output and of its errors."""

    code: int
    output: str = ""
    errors: str = ""


Run = Callable[[Site], Awaitable[Exit]]  # runs a program to its end; a cancellation ends it
