"""The parts of a run, assembled from a recipe: what the loop, the group sources and the evaluation work with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sojourn.protocols import Curriculum, EnvFamily, Renderer, Sampler, Trainer
from sojourn.rewards.reward_cache import RewardCache
from sojourn.rollout.runner import Runner
from sojourn.rollout.world import opened
from sojourn.tasks.listed import listed
from sojourn.timeline import Timeline
from sojourn.train.recipe import Recipe
from sojourn.types import SamplingParams


@dataclass
class Components:
    recipe: Recipe
    family: EnvFamily
    renderer: Renderer
    trainer: Trainer
    sampler: Sampler
    runner: Runner
    rewards: RewardCache
    curriculum: Curriculum
    timeline: Timeline

    @property
    def params(self) -> SamplingParams:
        """How the stages of the recipe sample."""
        return self.recipe.sampling.params()


@asynccontextmanager
async def assemble(recipe: Recipe) -> AsyncIterator[Components]:
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
            yield Components(
                recipe,
                recipe.env,
                backend.renderer,
                backend.trainer,
                backend.sampler,
                runner,
                RewardCache(recipe.reward),
                curriculum,
                timeline,
            )
    finally:
        await backend.sampler.close()
        backend.trainer.close()
