"""What worlds of conversations and tools share: environments whose info holds the game's own numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Literal

from sojourn.envs.tools import Interface, ToolsEnv
from sojourn.envs.user_seat import UserSeatEnv
from sojourn.types import Message, Step


@cache
def cached_interface(plain: type, name: str, form: Literal["both", "text", "native"]) -> Interface:
    """Returns the interface of a plain class, which is made once for each form."""
    return Interface.of(plain, name, form)


class ToolsEnvWithInfo(ToolsEnv):
    """The environment of a plain object whose attribute `info`, a mapping, holds the numbers of the last turn."""

    async def step(self, agent: str, action: Message) -> Step:
        step = await super().step(agent, action)
        return replace(step, info={**step.info, **self.game.info})


class UserSeatEnvWithInfo(UserSeatEnv, ToolsEnvWithInfo):
    """The same, of an object that talks with a user in a seat: the numbers are those of the agent's turns."""
