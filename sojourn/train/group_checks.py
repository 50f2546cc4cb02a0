"""Refuses a recipe whose world, once it is open, cannot give the groups that its stages need."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from sojourn.abilities import Checks, NamesLabels, env_needs, task_data
from sojourn.composite import with_bases
from sojourn.errors import ConfigError
from sojourn.protocols import EnvFamily, Renderer, Stream
from sojourn.rollout.world import worlds_of
from sojourn.sources.agent_trial import ROOM
from sojourn.sources.context import StageContext
from sojourn.sources.play_abilities import PlayAbilities, first_of_kinds
from sojourn.train.first_turns import check_first_turns
from sojourn.train.recipe import Recipe, Stage


def _context_of(recipe: Recipe, stage: Stage, plays: PlayAbilities, renderer: Renderer | None) -> StageContext:
    return StageContext(
        name=stage.name,
        groups=stage.groups,
        env=recipe.env,
        plays=plays,
        split=recipe.curriculum.split,
        agent=recipe.agent,
        limits=recipe.rollout.limits,
        params=recipe.sampling.params(),
        estimator=stage.estimator,
        losses=stage.losses,
        renderer=renderer,
        reward=recipe.reward,
        earlier={s.name: s.groups for s in itertools.takewhile(lambda s: s.name != stage.name, recipe.stages)},
    )


async def check_groups(
    recipe: Recipe, renderer: Renderer | None = None, max_context: int = ROOM, family: EnvFamily | None = None
) -> Mapping[str, int]:
    """Refuses a recipe whose world, which is open, or whose settings cannot provide the groups of a stage; returns the
    length of its first prompts in tokens, by world and kind of task.

    `renderer` and `max_context` are those of the model; without a renderer, what depends on them is not checked.
    `family` makes the plays that are looked at, where that is not the recipe's own.
    """
    plays = PlayAbilities(family or recipe.env, recipe.rollout.limits, recipe.curriculum.split)
    for stage in recipe.stages:
        if isinstance(stage.groups, Checks):
            await stage.groups.check(_context_of(recipe, stage, plays, renderer))
        for reward in with_bases([recipe.reward]):
            _check_task_data(recipe, stage.name, reward)
        for own in stage.of_models().values():
            await _check_learning(recipe, own, plays)
    return await check_first_turns(recipe, renderer, max_context, plays.family)


async def _check_learning(recipe: Recipe, stage: Stage, plays: PlayAbilities) -> None:
    """Refuses a stage, as it is for one of the models that learn in it, that needs more than the world has."""
    for ability in sorted(env_needs(stage.estimator)):
        if without := await plays.lacking(ability):
            raise ConfigError(
                f"stage '{stage.name}': {type(stage.estimator).__name__} needs environments with {ability}(), "
                f"which {without} does not have: define it, or choose another estimator"
            )
    for stream in stage.streams:
        _check_task_data(recipe, stage.name, stream)
        _check_labels(recipe, stage.name, stream)


def _check_task_data(recipe: Recipe, stage: str, part: object) -> None:
    """Checks the first task of each kind; others of the kind are assumed to have the same keys."""
    split = recipe.curriculum.split
    for task in [task for world in worlds_of(recipe.env) for _, task in first_of_kinds(world, split)]:
        for key in sorted(task_data(part) - set(task.data)):
            raise ConfigError(
                f"stage '{stage}': {type(part).__name__} reads '{key}' in the data of each task, but those of "
                f"{task.env} have {', '.join(sorted(task.data)) or 'none'}: say which key holds it, or choose another "
                "world"
            )


def _check_labels(recipe: Recipe, stage: str, stream: Stream) -> None:
    """Refuses a stream that names a world or a tag that no kind of task has."""
    if not isinstance(stream, NamesLabels) or not stream.labels:
        return
    kinds = [task for world in worlds_of(recipe.env) for _, task in first_of_kinds(world, recipe.curriculum.split)]
    known = {label for task in kinds for label in (task.env, *task.tags)}
    if missing := sorted(stream.labels - known):
        raise ConfigError(
            f"stage '{stage}': {type(stream).__name__} names '{missing[0]}', which is neither a world nor a tag of its "
            f"tasks: expected one of {', '.join(sorted(known))}"
        )
