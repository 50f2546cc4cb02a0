"""The parts of a run, assembled from a recipe: what the loop, the group sources and the evaluation work with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sojourn.event_loop import contained
from sojourn.protocols import Curriculum, EnvFamily, Renderer, Sampler, Trainer
from sojourn.rewards.reward_cache import Judge
from sojourn.rollout.play import Limits, ask
from sojourn.rollout.runner import Runner
from sojourn.tasks.listed import listed
from sojourn.timeline import Timeline
from sojourn.train.recipe import Recipe, Sampling


@dataclass
class Rig:
    recipe: Recipe
    family: EnvFamily
    renderer: Renderer
    trainer: Trainer
    sampler: Sampler
    runner: Runner
    judge: Judge
    curriculum: Curriculum
    timeline: Timeline

    @property
    def sampling(self) -> Sampling:
        return self.recipe.sampling


@asynccontextmanager
async def opened(family: EnvFamily, limits: Limits | None = None) -> AsyncIterator[None]:
    """With the world's shared resources, where it has any; closed whatever happens, within the limits of a call."""
    ready, done = asyncio.Event(), asyncio.Event()
    holding = asyncio.create_task(contained(_hold(family, ready, done, limits or Limits())))
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({holding, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if ready.is_set():
            yield
    except asyncio.CancelledError:
        if not ready.is_set():
            holding.cancel()
        raise
    finally:
        waiting.cancel()
        done.set()
        await holding


async def _hold(family: EnvFamily, ready: asyncio.Event, done: asyncio.Event, limits: Limits) -> None:
    """Opens and closes in one task, as scopes of cancellation that a world may hold open in between want it."""
    opener, closer = getattr(family, "open", None), getattr(family, "close", None)
    try:
        if opener is not None:
            await opener()
        ready.set()
        await done.wait()
    finally:
        if closer is not None:
            await ask(closer, limits, Timeline())


@asynccontextmanager
async def assemble(recipe: Recipe) -> AsyncIterator[Rig]:
    """Opens the backend and the world, and closes both whatever happens."""
    timeline = Timeline()
    backend = recipe.backend.open(recipe.model, recipe.renderer, recipe.seed, timeline, recipe.critic)
    try:
        async with opened(recipe.env, recipe.rollout.limits):
            runner = Runner(
                recipe.rollout,
                recipe.env,
                recipe.agent,
                backend.renderer,
                backend.sampler,
                backend.max_context,
                recipe.seed,
                timeline=timeline,
            )
            curriculum = recipe.curriculum.bind(listed(recipe.env, recipe.curriculum.split), recipe.seed)
            yield Rig(
                recipe,
                recipe.env,
                backend.renderer,
                backend.trainer,
                backend.sampler,
                runner,
                Judge(recipe.reward),
                curriculum,
                timeline,
            )
    finally:
        await backend.sampler.close()
        backend.trainer.close()
