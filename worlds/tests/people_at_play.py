"""Whole plays of the worlds of people: the expert's, and those of chance."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

from sojourn.errors import ActionError
from sojourn.types import Message, Role, Step


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def shown(step: Step) -> str:
    assert step.observation is not None
    return "\n".join(message.text for message in step.observation.messages)


def enter(family: Any, index: int = 0, split: str = "train") -> Any:
    return family.make(family.tasks(split)[index])


async def expert_play(family: Any, index: int, split: str = "train") -> tuple[float, Step, list[str]]:
    """The sum of the first seat's rewards (or of all, where one seat plays), the last step, and what was said."""
    env = enter(family, index, split)
    await env.start()
    return await go_on(env)


async def go_on(env: Any) -> tuple[float, Step, list[str]]:
    total, said = 0.0, []
    while True:
        action = env.expert()
        said.append(await action if inspect.isawaitable(action) else action)
        step = await env.step(getattr(env, "current_seat", "agent"), say(said[-1]))
        total += sum(step.rewards.values())
        if step.done:
            await env.close()
            return total, step, said
        assert len(said) < 100


async def answered(env: Any, step: Step, user: Callable[[str, str], str]) -> Step:
    """The step once the seat `user` has answered, if it is its turn: what `user` makes of its system message and of
    what it is told."""
    while step.observation is not None and step.observation.agent == "user":
        [told] = step.observation.messages
        system = "".join(message.text for message in step.observation.system)
        step = await env.step("user", say(user(system, told.text)))
    return step


async def chance_play(family: Any, index: int, rng: random.Random, limit: int = 100) -> float:
    """Chooses among the choices; the family must offer them."""
    env = enter(family, index)
    step = Step(await env.start())
    total = 0.0
    for _ in range(limit):
        assert step.observation is not None
        try:
            step = await env.step(step.observation.agent, say(rng.choice(step.observation.choices)))
        except ActionError as error:
            raise AssertionError("a choice was refused") from error
        total += sum(step.rewards.values())
        if step.done:
            break
    await env.close()
    return total
