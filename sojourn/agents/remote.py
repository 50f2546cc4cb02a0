"""An agent that is a service elsewhere, which opens a session over HTTP for each episode."""

from __future__ import annotations

import asyncio
import os
from asyncio import FIRST_COMPLETED
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from sojourn.agents.programs.seat import Bounds, ProgramSeat
from sojourn.agents.programs.site import Exit, Job, Site
from sojourn.config.fields import Range, Text
from sojourn.errors import BudgetError, ConfigError, InfrastructureError
from sojourn.gateway.desk import Closed, Desk, Place, Ticket, running_desk
from sojourn.gateway.hosts import LOCAL
from sojourn.protocols import AgentContext
from sojourn.types import Ending

VARIABLE = Text(r"|[A-Z][A-Z0-9_]*", "the name of an environment variable, or nothing")


@dataclass(frozen=True, kw_only=True)
class Remote:
    """Gives each episode to a service elsewhere, which opens a session over HTTP, acts in it, and closes it; its
    requests to the model become the turns that are trained.

    Services ask `POST /open` at `host` and `port` for an episode, and are told its task and the addresses of its model
    and its world, below `url` ("": that of `host` and `port`). Any address but loopback asks for the token that is in
    the environment variable `token`. Each episode is given to one service, and no session is reached without its key.

    An episode that no service opens within `open_seconds` is a failure of the infrastructure, and so is one whose
    service asks for nothing for `silent_seconds`, or closes it with a failure: it is played again. An episode ends when
    the world says so, when its service closes it, or after `seconds`, and has at most `replies` of the model. When it
    is closed, `last_action` is performed first, if there is one: a text, in which {reply} is the model's last reply,
    and {output} what the service gave as its output. Only with `rewards` may a service give a reward when it closes an
    episode; it is added to that of the last turn.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Range(1, 65535)] = 8790
    url: Annotated[str, Text(r"|https?://\S+", "an address such as http://10.0.0.7:8790, or nothing")] = ""
    token: Annotated[str, VARIABLE] = ""
    open_seconds: Annotated[float, Range(above=0)] = 600.0
    silent_seconds: Annotated[float, Range(above=0)] = 120.0
    seconds: Annotated[float, Range(above=0)] = 600.0
    replies: Annotated[int, Range(1)] = 64
    last_action: str = ""
    rewards: bool = False

    def __post_init__(self) -> None:
        if self.host not in LOCAL and not self.token:
            raise ValueError(f"host = {self.host!r} is no loopback address: name the variable with a token in `token`")

    @property
    def program(self) -> str:
        return f"a service that asks at {self.host}:{self.port}"

    def require_installed(self) -> None:
        """Raises `ConfigError` where the token is not in the environment."""
        if self.token and not os.environ.get(self.token, "").strip():
            raise ConfigError(f"agent.token = {self.token!r}, but this variable is not set: set it to the token")

    def seat(self, context: AgentContext) -> ProgramSeat:
        whole = self.open_seconds + self.seconds
        bounds = Bounds(seconds=whole, replies=self.replies, last_action=self.last_action)
        return ProgramSeat(context, self._run, bounds)

    async def _run(self, site: Site) -> Exit:
        self.require_installed()
        secret = os.environ[self.token].strip() if self.token else ""
        desk = await running_desk(Place(self.host, self.port, secret, self.url))
        session = site.service.sessions.get(site.job.key)
        ticket = Ticket(session, site.port, lambda url: _told(site.job.at(url), self.seconds), self.rewards)
        desk.add(ticket)
        try:
            await self._opened(desk, ticket)
            closed = await self._closed(ticket)
        finally:
            desk.remove(ticket)
        if closed.failure:
            raise InfrastructureError(f"the service that took the episode failed: {closed.failure[:400]}")
        if closed.reward is not None and session.turns:
            session.add_reward(len(session.turns) - 1, closed.reward, {"service_reward": closed.reward})
        return Exit(0, closed.output)

    async def _opened(self, desk: Desk, ticket: Ticket) -> None:
        try:
            async with asyncio.timeout(self.open_seconds):
                await ticket.taken.wait()
        except TimeoutError:
            raise InfrastructureError(
                f"no service opened the episode within {self.open_seconds:g} s: start one that asks POST "
                f"{desk.url}/open"
            ) from None

    async def _closed(self, ticket: Ticket) -> Closed:
        """Waits until the service closes the episode; raises an error where it goes on too long, or has gone."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.seconds
        while True:
            quiet = self.silent_seconds if ticket.requests else ticket.seen + self.silent_seconds - loop.time()
            left = min(end - loop.time(), quiet)
            await asyncio.wait({ticket.closed}, timeout=max(left, 0), return_when=FIRST_COMPLETED)
            if ticket.closed.done():
                return ticket.closed.result()
            if loop.time() >= end and not ticket.session.turns:
                raise InfrastructureError(
                    f"the service that took the episode went on for {self.seconds:g} s, as long as it may, and the "
                    "model gave it no reply: expected one that asks at its base_url; it may be given more `seconds`"
                )
            if loop.time() >= end:
                raise BudgetError("the service went on for as long as it may", Ending.TIME)
            if not ticket.requests and loop.time() >= ticket.seen + self.silent_seconds:
                raise InfrastructureError(
                    f"the service that took the episode asked for nothing for {self.silent_seconds:g} s: it is gone"
                )


def _told(job: Job, seconds: float) -> Mapping[str, Any]:
    """Returns what a service is told of an episode."""
    return {"task": job.task, "url": job.url, "base_url": job.base_url, "mcp_url": job.mcp_url, "key": job.key,
            "model": job.model, "seconds": seconds}  # fmt: skip
