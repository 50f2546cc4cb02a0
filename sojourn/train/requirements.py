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
from sojourn.train.recipe import Recipe, Stage

OWN = frozenset({"entropy", "critic"})  # what a loss is given by its own pass, whatever the backend


def check_needs(recipe: Recipe) -> None:
    """Refuses a stage whose estimator or losses need what nothing provides, and a critic that nothing asks."""
    of_pass = OWN | (recipe.backend.pass_columns if isinstance(recipe.backend, HasPassColumns) else frozenset())
    for stage in recipe.stages:
        streams = {stream.provides for stream in stage.streams}
        there = streams | provided(stage.estimator)
        for part in (stage.estimator, *stage.losses):
            own = of_pass if part in stage.losses else frozenset()
            for need in sorted(part.needs - there - own):
                raise ConfigError(f"stage '{stage.name}': {type(part).__name__} needs {_remedy(stage, need)}")
        if len(streams) < len(stage.streams):
            raise ConfigError(f"stage '{stage.name}': two streams provide the same: keep one of each")
        _check_valid(stage)
        _check_columns(stage)
        _check_size(stage, recipe.env)
        wanted = frozenset().union(stage.estimator.needs, *(loss.needs - of_pass for loss in stage.losses))
        for stream in stage.streams:
            if stream.provides not in wanted:
                raise ConfigError(
                    f"stage '{stage.name}': nothing uses the stream '{stream.provides}': remove it, or name "
                    "it in record.streams to look at"
                )
    _check_critic(recipe)
    _check_recorded(recipe)
    _check_room(recipe)


def _check_recorded(recipe: Recipe) -> None:
    """Streams that are only looked at must not change what is trained: none that learns, nor asks a critic."""
    for stream in recipe.record.streams:
        if isinstance(stream, Learns) or reads_critic(stream):
            raise ConfigError(
                f"record.streams: {type(stream).__name__} learns or asks a critic: give it to a stage that uses it"
            )
    if len({stream.provides for stream in recipe.record.streams}) < len(recipe.record.streams):
        raise ConfigError("record.streams: two of them provide the same: keep one of each")


def _remedy(stage: Stage, need: str) -> str:
    if need == "targets":
        return (
            f"an estimator that says what a critic should have said, which {type(stage.estimator).__name__} does not: "
            "use one such as gae, or remove the loss"
        )
    return f"the stream '{need}', which nothing provides: add streams = [{{name = '{need}'}}]"


def _check_critic(recipe: Recipe) -> None:
    """A critic must be asked, and there for those who ask it; and trained, or it says 0 for ever."""
    asks = [(s, part) for s in recipe.stages for part in _parts_that_ask_critic(s)]
    if recipe.critic is None and asks:
        stage, part = asks[0]
        raise ConfigError(f"stage '{stage.name}': {type(part).__name__} needs a critic: add a table [critic]")
    if recipe.critic is not None and not asks:
        raise ConfigError("critic: no stage asks it: remove the table, or use an estimator such as gae with loss value")
    if (
        asks
        and not recipe.model.weights
        and not any("critic" in loss.needs for s in recipe.stages for loss in s.losses)
    ):
        stage, part = asks[0]
        raise ConfigError(
            f"stage '{stage.name}': {type(part).__name__} reads a critic that nothing trains: add losses = [{{name = "
            "'value'}]"
        )


def _parts_that_ask_critic(stage: Stage) -> list[Stream | Loss]:
    return [*filter(reads_critic, stage.streams), *(loss for loss in stage.losses if "critic" in loss.needs)]


def _check_room(recipe: Recipe) -> None:
    """Refuses turns that fill a whole context."""
    most = recipe.backend.max_context if isinstance(recipe.backend, HasMaxContext) else None
    if most is not None and recipe.sampling.max_tokens >= most:
        raise ConfigError(
            f"sampling.max_tokens = {recipe.sampling.max_tokens} leaves no room for a prompt in backend.max_context = "
            f"{most}: lower the one, or raise the other"
        )


def _check_columns(stage: Stage) -> None:
    """Refuses two losses of a kind that makes columns of the batch: the second's would take the first's place."""
    made = [type(loss).__name__ for loss in stage.losses if isinstance(loss, HasColumns | Chooses)]
    if twice := [name for name in made if made.count(name) > 1]:
        raise ConfigError(
            f"stage '{stage.name}': losses has {twice[0]} twice, whose columns would be the same: keep one"
        )


def _check_size(stage: Stage, env: EnvFamily) -> None:
    """Refuses groups whose credit would be 0, as there is nothing in them to compare an episode with, and more
    minibatches than there are trajectories."""
    size = group_size(stage.groups)
    least = min_group_size(stage.estimator)
    if size is not None and size < least:
        raise ConfigError(
            f"stage '{stage.name}': {type(stage.estimator).__name__} compares the episodes of a group, and of groups "
            f"of {size} learns nothing: expected groups of at least {least}, or an estimator such as reinforce"
        )
    if not stage.groups.live or size is None:
        return
    seats = max(len(seats_of_world(world)) for world in worlds_of(env))
    if stage.minibatches > (most := stage.groups.width * size * seats):
        raise ConfigError(
            f"stage '{stage.name}': minibatches = {stage.minibatches}, but a step has {most} trajectories: expected at "
            "most one for each"
        )


def _check_valid(stage: Stage) -> None:
    """Refuses a loss that would be wrong for tokens of other weights than the present ones, where a stage has such
    tokens: those of a lag, of a source that is not live, and of every minibatch after the first."""
    lag = max_lag(stage.groups)
    older = f"groups.max_lag = {lag} gives older ones" if lag else f"{type(stage.groups).__name__} gives others"
    for loss in stage.losses:
        right_for = valid_for(loss)
        name = type(loss).__name__
        if (lag or not stage.groups.live) and "lag" not in right_for:
            remedy = "ppo, or losses = [{name = 'importance', base = {...}}]"
            raise ConfigError(
                f"stage '{stage.name}': {name} is right for samples of the present weights alone, but {older}: use "
                f"{remedy if stage.groups.live else remedy + ', or nll to imitate them'}"
            )
        if stage.minibatches > 1 and "updates" not in right_for:
            raise ConfigError(
                f"stage '{stage.name}': {name} is right for samples of the present weights alone, but after the first "
                f"of {stage.minibatches} minibatches they have changed: use ppo, or minibatches = 1"
            )
