"""Plays of the world `miniwob`, for its tests."""

from contextlib import asynccontextmanager

from sojourn.types import Message, Role, Task
from sojourn_worlds.miniwob import MiniWoB


@asynccontextmanager
async def world(**config):
    family = MiniWoB(**config)
    await family.open()
    try:
        yield family
    finally:
        await family.close()


def task(page, seed=1):
    return Task("miniwob", {"page": page}, seed, "train")


@asynccontextmanager
async def visit(family, page, seed=1):
    env = family.make(task(page, seed))
    try:
        yield env, await env.start()
    finally:
        await env.close()


async def act(env, *actions):
    step = None
    for said in actions:
        step = await env.step("agent", Message(Role.ASSISTANT, said))
    return step


async def solve(family, page, seed):
    async with visit(family, page, seed) as (env, _):
        for _ in range(50):
            step = await act(env, await env.expert())
            if step.done:
                return step.rewards["agent"], step.success
    return None
