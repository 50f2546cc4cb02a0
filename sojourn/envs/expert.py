"""Asks the expert of an environment for its next action."""

from __future__ import annotations

from collections.abc import Awaitable

from sojourn.abilities import HasExpert, HasNativeActions
from sojourn.errors import ConfigError
from sojourn.types import Message, Role


async def expert_message(env: HasExpert) -> Message:
    """Returns the next action of the environment's expert in the form in which agents are to act there."""
    text = await expert_action(env)
    return env.native_action(text) if isinstance(env, HasNativeActions) else Message(Role.ASSISTANT, text)


async def expert_action(env: HasExpert) -> str:
    """Returns the next action of the environment's scripted expert."""
    action = env.expert()
    action = await action if isinstance(action, Awaitable) else action
    if not isinstance(action, str):
        raise ConfigError(f"the world's expert() returned {action!r}: expected the next action as text")
    return action
