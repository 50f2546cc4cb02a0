"""What the tests of the adapters share: saying something, and plays by the expert and by chance."""

from __future__ import annotations

import inspect
import random
from typing import Any

from sojourn.types import Message, Observation, Role, Step


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


async def expert_play(family: Any, index: int, split: str = "train") -> tuple[list[Step], list[str]]:
    """The steps and actions of a play by the world's expert."""
    env = family.make(family.tasks(split)[index])
    steps, said = [], []
    try:
        observation: Observation | None = await env.start()
        while observation is not None:
            action = env.expert()
            said.append(await action if inspect.isawaitable(action) else action)
            steps.append(await env.step(observation.agent, say(said[-1])))
            observation = steps[-1].observation
    finally:
        await env.close()
    return steps, said


async def chance_play(family: Any, index: int, seed: int, most: int = 1_000) -> list[Step]:
    """The steps of a play that takes its choices at random."""
    rng, env = random.Random(seed), family.make(family.tasks("train")[index])
    steps: list[Step] = []
    try:
        observation: Observation | None = await env.start()
        while observation is not None and len(steps) < most:
            steps.append(await env.step(observation.agent, say(rng.choice(observation.choices))))
            observation = steps[-1].observation
    finally:
        await env.close()
    return steps


def failed(report: Any) -> list[str]:
    return [f"{name}: {report[name].detail}" for name in report.failed]
