"""Refuses a recipe whose world, once it is open, cannot give the groups that its stages need."""

from __future__ import annotations

from sojourn.abilities import Checks, env_needs, task_data
from sojourn.errors import ConfigError
from sojourn.protocols import Stream
from sojourn.rollout.world import worlds_of
from sojourn.sources.context import StageContext
from sojourn.sources.play_abilities import first_of_kinds, lacking
from sojourn.train.recipe import Recipe, Stage


def _context_of(recipe: Recipe, stage: Stage) -> StageContext:
    return StageContext(
        name=stage.name,
        env=recipe.env,
        split=recipe.curriculum.split,
        agent=recipe.agent,
        limits=recipe.rollout.limits,
        params=recipe.sampling.params(),
        estimator=stage.estimator,
        losses=stage.losses,
    )


async def check_groups(recipe: Recipe) -> None:
    """Refuses a recipe whose world, which is open, or whose settings cannot provide the groups of a stage."""
    for stage in recipe.stages:
        if isinstance(stage.groups, Checks):
            await stage.groups.check(_context_of(recipe, stage))
        for ability in sorted(env_needs(stage.estimator)):
            if without := await lacking(recipe.env, ability, recipe.rollout.limits, recipe.curriculum.split):
                raise ConfigError(
                    f"stage '{stage.name}': {type(stage.estimator).__name__} needs environments with {ability}(), "
                    f"which {without} does not have: define it, or choose another estimator"
                )
        for stream in stage.streams:
            _check_task_data(recipe, stage.name, stream)


def _check_task_data(recipe: Recipe, stage: str, stream: Stream) -> None:
    """Checks the first task of each kind; others of the kind are assumed to have the same keys."""
    split = recipe.curriculum.split
    for task in [task for world in worlds_of(recipe.env) for _, task in first_of_kinds(world, split)]:
        for key in sorted(task_data(stream) - set(task.data)):
            raise ConfigError(
                f"stage '{stage}': {type(stream).__name__} reads '{key}' in the data of each task, but those of "
                f"{task.env} have {', '.join(sorted(task.data)) or 'none'}: say which key holds it, or choose another "
                "world"
            )
