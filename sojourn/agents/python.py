"""An agent that is an asynchronous Python function, which talks to the model over HTTP."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from sojourn.agents.programs.seat import Bounds, ProgramSeat
from sojourn.agents.programs.site import Exit, Site
from sojourn.config.fields import Range
from sojourn.config.lookup import import_object
from sojourn.gateway.world_port import Shown
from sojourn.protocols import AgentContext
from sojourn.types import Message, Observation, Role


@dataclass(frozen=True)
class Client:
    """Gives a function its episode: the addresses of the model, and the world.

    `base_url` is for OpenAI's clients and `url` for Anthropic's; `key` is the API key of both. `task` holds the
    instructions and the first observation as one text, and `observation` what the world shows now.
    """

    site: Site

    @property
    def url(self) -> str:
        return self.site.job.url

    @property
    def base_url(self) -> str:
        return self.site.job.base_url

    @property
    def key(self) -> str:
        return self.site.job.key

    @property
    def model(self) -> str:
        return self.site.job.model

    @property
    def task(self) -> str:
        return self.site.job.task

    @property
    def observation(self) -> Observation:
        return self.site.port.observation

    @property
    def over(self) -> bool:
        """Returns whether the episode is over."""
        return self.site.port.over

    async def act(self, text: str, *, call_id: str = "") -> Shown:
        """Performs an action in text, and returns what the world shows then. `call_id` is that of the model's call that
        is carried out, if there is one."""
        return await self.site.port.act(Message(Role.ASSISTANT, text), call_id)

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str = "") -> Shown:
        """Performs an action by a tool of the world. Raises `RequestError`, whose text can be told to the model, where
        there is no such tool, or where the arguments are no object."""
        return await self.site.port.act(self.site.port.call(name, arguments), call_id)


@dataclass(frozen=True, kw_only=True)
class Python:
    """Awaits a `function` of the user's own ("module:name") for each episode, whose requests to the model become the
    turns that are trained.

    It is given a `Client`, and runs in the process of the training. The episode ends when the world says so, or when
    the function returns; then, `last_action` is performed first, if there is one: a text, in which {reply} is the
    model's last reply, and {output} what the function returned. It has at most `replies` of the model, and `seconds`.
    One that raises before the first reply, or has none in its time, is a failure of the infrastructure; one that raises
    later, also as the model called a tool that is not there, has the info `program_failed`.
    """

    function: str
    last_action: str = ""
    replies: Annotated[int, Range(1)] = 64
    seconds: Annotated[float, Range(above=0)] = 600.0

    def __post_init__(self) -> None:
        if not inspect.iscoroutinefunction(self.called):
            raise ValueError(f"function = {self.function!r}: expected an asynchronous function (async def)")

    @property
    def called(self) -> Callable[[Client], Awaitable[Any]]:
        return import_object(self.function, "agent.function")

    @property
    def program(self) -> str:
        return f"the function {self.function}"

    def seat(self, context: AgentContext) -> ProgramSeat:
        bounds = Bounds(seconds=self.seconds, replies=self.replies, last_action=self.last_action)
        return ProgramSeat(context, self._run, bounds)

    async def _run(self, site: Site) -> Exit:
        said = await self.called(Client(site))
        return Exit(0, "" if said is None else str(said))
