"""Plays of tool environments whose object reports numbers for each turn (`Step.info`)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Literal

from sojourn.envs.tools import Interface, ToolsEnv
from sojourn.types import Message, Step


@cache
def cached_interface(plain: type, name: str, form: Literal["both", "text", "native"]) -> Interface:
    """Returns the interface of a plain class, which is made once for each form."""
    return Interface.of(plain, name, form)


class ToolsEnvWithInfo(ToolsEnv):
    """A play of a plain object whose mapping `info` holds the numbers of the last turn; they are added to its steps."""

    async def step(self, agent: str, action: Message) -> Step:
        step = await super().step(agent, action)
        return replace(step, info={**step.info, **self.game.info})
