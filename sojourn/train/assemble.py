"""Assembles the components of a run from its recipe, for the loop, the group sources and the evaluation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sojourn.abilities import bound_curriculum
from sojourn.models.answers import AnswerStore
from sojourn.models.asking import AskedModels
from sojourn.protocols import Curriculum, Renderer, Sampler, Source, Trainer
from sojourn.record.episodes.store import EpisodeStore
from sojourn.rewards.reward_cache import RewardCache
from sojourn.rollout.runner import Runner
from sojourn.rollout.world import open_world
from sojourn.streams.asked_critic import AskedCritic
from sojourn.tasks.listed import listed
from sojourn.timeline import Timeline
from sojourn.train.asked_models import bound, open_asked
from sojourn.train.browsers import placed
from sojourn.train.further_models import reserve_further_models
from sojourn.train.named_models import open_players
from sojourn.train.recipe import Recipe
from sojourn.train.reward_models import RewardModels
from sojourn.train.seating import POLICY, Seating
from sojourn.types import SamplingParams


@dataclass(kw_only=True)
class Components:
    """Holds the components that a recipe describes, open and bound to each other."""

    recipe: Recipe
    renderer: Renderer
    trainer: Trainer  # of the policy
    trainers: Mapping[str, Trainer]  # of all models that learn, by their names
    reward_models: Mapping[str, Trainer] = field(default_factory=dict[str, Trainer])  # those that are opened to be read
    sampler: Sampler
    runner: Runner
    rewards: RewardCache
    curriculum: Curriculum
    seating: Seating
    timeline: Timeline
    asked: AskedModels = field(default_factory=lambda: AskedModels({}))  # for text
    answers: AnswerStore = field(default_factory=AnswerStore)  # of those of them that are behind endpoints
    source: Source | None = None  # of the present stage
    episodes: EpisodeStore = field(init=False)  # of a run, which records them; an evaluation alone has none

    @property
    def params(self) -> SamplingParams:
        """Returns the sampling parameters of the recipe's stages."""
        return self.recipe.sampling.params()


@asynccontextmanager
async def assemble(recipe: Recipe) -> AsyncIterator[Components]:
    """Opens the backend and the world, and closes both whatever happens.

    Where the backend has plays elsewhere, the world is open there alone. Its tasks are still those of the recipe's.
    """
    timeline = Timeline()
    backend = recipe.backend.open(recipe.model, recipe.renderer, recipe.seed, timeline, recipe.critic)
    sampler, trainers, answers = backend.sampler, {POLICY: backend.trainer}, AnswerStore()
    reward_models = RewardModels()
    try:
        reserve_further_models(recipe)
        sampler, pools, trainers = await open_players(recipe, backend, timeline)
        seating = Seating(recipe.seats, recipe.seed, recipe.evaluation.seats, pools)
        reward_models.open(recipe, backend)
        asked = open_asked(recipe, backend.renderer, sampler, answers)
        family = placed(recipe)
        async with open_world(family, recipe.rollout.limits):
            runner = Runner(
                config=recipe.rollout,
                family=family,
                agent=recipe.agent,
                renderer=backend.renderer,
                sampler=sampler,
                max_context=backend.max_context,
                seed=recipe.seed,
                critic=None if recipe.critic is None else AskedCritic(backend.trainer),
                timeline=timeline,
                model_of=seating,
                trained=frozenset(trainers),
                asked=asked,
                served=recipe.served_seats,
            )
            tasks = listed(recipe.env, recipe.curriculum.split)
            curriculum = bound_curriculum(recipe.curriculum, recipe.env, tasks, recipe.seed)
            yield Components(
                recipe=recipe,
                renderer=backend.renderer,
                trainer=backend.trainer,
                trainers=trainers,
                reward_models=reward_models.trainers,
                sampler=sampler,
                runner=runner,
                rewards=RewardCache(reward_models.bound(bound(recipe.reward, asked))),
                curriculum=curriculum,
                seating=seating,
                asked=asked,
                answers=answers,
                timeline=timeline,
            )
    finally:
        await answers.finish()
        answers.close()
        reward_models.close()
        await sampler.close()
        for trainer in trainers.values():
            trainer.close()
