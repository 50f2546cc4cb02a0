"""The parts of a run, assembled from a recipe: what the loop, the group sources and the evaluation work with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sojourn.protocols import Curriculum, EnvFamily, Renderer, Sampler, Trainer
from sojourn.recipe import Recipe, Sampling
from sojourn.rewards.judge import Judge
from sojourn.rollout.runner import Runner
from sojourn.timeline import Timeline


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
async def opened(family: EnvFamily) -> AsyncIterator[None]:
    """With the world's shared resources, where it has any; closed whatever happens."""
    opener, closer = getattr(family, "open", None), getattr(family, "close", None)
    try:
        if opener is not None:
            await opener()
        yield
    finally:
        if closer is not None:
            await closer()


@asynccontextmanager
async def assemble(recipe: Recipe) -> AsyncIterator[Rig]:
    """Opens the backend and the world, and closes both whatever happens."""
    timeline = Timeline()
    backend = recipe.backend.open(recipe.model, recipe.renderer, recipe.seed, timeline, recipe.critic)
    try:
        async with opened(recipe.env):
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
            curriculum = recipe.curriculum.bind(recipe.env.tasks(recipe.curriculum.split), recipe.seed)
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
