"""Where tools are declared as schemas alone, an expert's action is made as a structured call and answered as one."""

from __future__ import annotations

from typing import Any

import pytest

from sojourn.abilities import HasNativeActions
from sojourn.envs.expert import expert_message
from sojourn.types import Message, Role
from sojourn_worlds.clarify import Clarify
from sojourn_worlds.python import Python
from sojourn_worlds.social import Social
from sojourn_worlds.terminal import Terminal


@pytest.mark.parametrize(
    ("world", "answered"),
    [
        (Python(kinds=("cipher",), form="native"), Role.TOOL),
        (Terminal(form="native"), Role.TOOL),
        (Clarify(form="native"), Role.TOOL),
        (Social(form="native"), Role.USER),  # what the other says is no result
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_native_play_of_the_expert(world, answered: Role):
    env: Any = world.make(world.tasks("train")[0])
    try:
        await env.start()
        assert hasattr(env, "native_action")
        message = await expert_message(env)  # as a demonstration says it
        assert (message.text, len(message.calls)) == ("", 1)
        step = await env.step(getattr(env, "current_seat", "agent"), message)
        assert step.observation is not None
        assert step.observation.messages[0].role is answered
    finally:
        await env.close()


async def test_elsewhere_the_expert_says_text():
    env = Python(kinds=("cipher",)).make(Python(kinds=("cipher",)).tasks("train")[0])
    assert not isinstance(env, HasNativeActions)
    assert await expert_message(env) == Message(Role.ASSISTANT, env.expert())
