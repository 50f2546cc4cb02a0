"""Checks whether the parts of a recipe fit together: what is missing or cannot work is refused before anything runs."""

from __future__ import annotations

from sojourn.abilities import (
    Chooses,
    HasColumns,
    HasMaxContext,
    HasPassColumns,
    Learns,
    group_size,
    max_lag,
    min_group_size,
    provided,
    reads_critic,
    valid_for,
)
from sojourn.errors import ConfigError
from sojourn.protocols import EnvFamily, Loss, Stream
from sojourn.rollout.world import seats_of_world, worlds_of
from sojourn.train.early_stop import evaluations_within
from sojourn.train.recipe import Recipe, Stage

PASS_COLUMNS = frozenset({"entropy", "critic"})  # what every backend's forward pass gives a loss


def check_needs(recipe: Recipe) -> None:
    """Refuses a stage whose estimator or losses need what nothing provides, and a critic that nothing reads."""
    pass_columns = PASS_COLUMNS | (
        recipe.backend.pass_columns if isinstance(recipe.backend, HasPassColumns) else frozenset()
    )
    for stage in recipe.stages:
        streams = {stream.provides for stream in stage.streams}
        available = streams | provided(stage.estimator)
        for component in (stage.estimator, *stage.losses):
            of_pass = pass_columns if component in stage.losses else frozenset()
            for need in sorted(component.needs - available - of_pass):
                raise ConfigError(f"stage '{stage.name}': {type(component).__name__} needs {_remedy(stage, need)}")
        if len(streams) < len(stage.streams):
            raise ConfigError(f"stage '{stage.name}': two streams provide the same values: keep one of the two")
        _check_valid(stage)
        _check_early_stop(stage, recipe.evaluation.every)
        _check_columns(stage)
        _check_group_size(stage, recipe.env)
        needed = frozenset().union(stage.estimator.needs, *(loss.needs - pass_columns for loss in stage.losses))
        for stream in stage.streams:
            if stream.provides not in needed:
                raise ConfigError(
                    f"stage '{stage.name}': nothing uses the stream '{stream.provides}': remove it, or name "
                    "it in record.streams, to record it only"
                )
    _check_critic(recipe)
    _check_recorded(recipe)
    _check_max_tokens(recipe)


def _check_recorded(recipe: Recipe) -> None:
    """Refuses recorded streams that would change what is trained: those that learn, or read a critic."""
    for stream in recipe.record.streams:
        if isinstance(stream, Learns) or reads_critic(stream):
            raise ConfigError(
                f"record.streams: {type(stream).__name__} learns or reads a critic: give it to a stage that uses it"
            )
    if len({stream.provides for stream in recipe.record.streams}) < len(recipe.record.streams):
        raise ConfigError("record.streams: two of them provide the same values: keep one of the two")


def _remedy(stage: Stage, need: str) -> str:
    """Returns what a stage lacks, and how to provide it, to end a sentence with."""
    if need == "targets":
        return (
            f"an estimator that computes targets for the critic, which {type(stage.estimator).__name__} does not: "
            "use one such as gae, or remove the loss"
        )
    return f"the stream '{need}', which nothing provides: add streams = [{{name = '{need}'}}]"


def _check_critic(recipe: Recipe) -> None:
    """Refuses a critic that nothing reads, a missing one, and one that nothing trains, since its values stay 0."""
    readers = [(s, part) for s in recipe.stages for part in _critic_readers(s)]
    if recipe.critic is None and readers:
        stage, part = readers[0]
        raise ConfigError(f"stage '{stage.name}': {type(part).__name__} needs a critic: add a table [critic]")
    if recipe.critic is not None and not readers:
        raise ConfigError(
            "critic: no stage reads it: remove the table, or use an estimator such as gae with loss value"
        )
    if (
        readers
        and not recipe.model.weights
        and not any("critic" in loss.needs for s in recipe.stages for loss in s.losses)
    ):
        stage, part = readers[0]
        raise ConfigError(
            f"stage '{stage.name}': {type(part).__name__} reads a critic that nothing trains: add losses = [{{name = "
            "'value'}]"
        )


def _check_max_tokens(recipe: Recipe) -> None:
    """Refuses turns that may be as long as the whole context."""
    max_context = recipe.backend.max_context if isinstance(recipe.backend, HasMaxContext) else None
    if max_context is not None and recipe.sampling.max_tokens >= max_context:
        raise ConfigError(
            f"sampling.max_tokens = {recipe.sampling.max_tokens} leaves no room for a prompt in backend.max_context = "
            f"{max_context}: lower the first, or raise the second"
        )


def _critic_readers(stage: Stage) -> list[Stream | Loss]:
    return [*filter(reads_critic, stage.streams), *(loss for loss in stage.losses if "critic" in loss.needs)]


def _check_columns(stage: Stage) -> None:
    """Refuses two losses of one class that adds columns to the batch, as the second would overwrite the first's."""
    names = [type(loss).__name__ for loss in stage.losses if isinstance(loss, HasColumns | Chooses)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"stage '{stage.name}': losses has {twice[0]} twice, whose columns would be the same: keep one"
        )


def _check_group_size(stage: Stage, env: EnvFamily) -> None:
    """Refuses groups whose credit would be 0, as there is nothing in them to compare an episode with, and more
    minibatches than there are trajectories."""
    size = group_size(stage.groups)
    min_size = min_group_size(stage.estimator)
    if size is not None and size < min_size:
        raise ConfigError(
            f"stage '{stage.name}': {type(stage.estimator).__name__} compares the episodes of a group, and learns "
            f"nothing from groups of {size}: expected groups of at least {min_size}, or an estimator such as reinforce"
        )
    if not stage.groups.live or size is None:
        return
    seats = max(len(seats_of_world(world)) for world in worlds_of(env))
    if stage.minibatches > (trajectories := stage.groups.width * size * seats):
        raise ConfigError(
            f"stage '{stage.name}': minibatches = {stage.minibatches}, but a step has {trajectories} trajectories: "
            "expected at most as many minibatches"
        )


def _check_early_stop(stage: Stage, every: int) -> None:
    """Refuses an early stop in a stage that has too few evaluations within it for that."""
    count, rule = evaluations_within(stage.steps, every), stage.early_stop
    if not rule.active or count > rule.patience:
        return
    needed = f"more than {rule.patience}" if rule.patience else "at least one"
    raise ConfigError(
        f"stage '{stage.name}': early_stop needs {needed} of the evaluations within the stage, but evaluation.every = "
        f"{every} gives {count} in its {stage.steps} steps: set evaluation.every to at most "
        f"{max((stage.steps - 1) // (rule.patience + 1), 1)}, or remove early_stop"
    )


def _check_valid(stage: Stage) -> None:
    """Refuses a loss that is wrong for off-policy tokens, where a stage has them: with a lag, with a source that is not
    live, and in every minibatch after the first."""
    lag = max_lag(stage.groups)
    cause = f"groups.max_lag = {lag} gives older ones" if lag else f"{type(stage.groups).__name__} gives other ones"
    for loss in stage.losses:
        valid = valid_for(loss)
        name = type(loss).__name__
        if (lag or not stage.groups.live) and "lag" not in valid:
            remedy = "ppo, or losses = [{name = 'importance', base = {...}}]"
            raise ConfigError(
                f"stage '{stage.name}': {name} is valid only for samples of the current weights, but {cause}: use "
                f"{remedy if stage.groups.live else remedy + ', or nll to imitate them'}"
            )
        if stage.minibatches > 1 and "updates" not in valid:
            raise ConfigError(
                f"stage '{stage.name}': {name} is valid only for samples of the current weights, but after the first "
                f"of {stage.minibatches} minibatches the weights have changed: use ppo, or minibatches = 1"
            )
