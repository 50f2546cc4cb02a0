"""Checks whether the parts of a recipe fit together: what is missing or cannot work is refused before anything runs."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import pairwise

from sojourn.abilities import (
    Branches,
    Chooses,
    Compares,
    ComparesDistributions,
    HasColumns,
    HasMaxContext,
    HasPassColumns,
    Learns,
    LooksAhead,
    NamesOrigins,
    NamesSeats,
    ReadsWords,
    Steers,
    WritesWords,
    applied,
    asked_for_text,
    asked_models,
    asks_critic,
    frozen,
    group_size,
    max_lag,
    min_group_size,
    origin_of,
    parts_of,
    provided,
    reads_critic,
    sub_agent_models,
    valid_for,
    value_models,
)
from sojourn.composite import HasBases, with_bases
from sojourn.config.lookup import nearest
from sojourn.errors import ConfigError
from sojourn.protocols import Agent, Stream
from sojourn.rollout.world import seats_of_world, worlds_of
from sojourn.sources.searched import Searched
from sojourn.sources.slots import Slots
from sojourn.train.browsers import check_browsers
from sojourn.train.early_stop import evaluations_within
from sojourn.train.further_models import check_further_models
from sojourn.train.named_models import check_learning, check_names
from sojourn.train.programs import check_programs
from sojourn.train.recipe import CRITIC, Recipe, Stage
from sojourn.train.reward_models import check_reward_models
from sojourn.train.sub_agents import check_sub_agents

PASS_COLUMNS = frozenset({"entropy", "critic"})  # what every backend's forward pass gives a loss


def check_needs(recipe: Recipe) -> None:
    """Refuses a stage whose estimator or losses need what nothing provides, and a critic that nothing reads."""
    recipe.seats.check(recipe.env)
    if recipe.evaluation.seats is not None:
        recipe.evaluation.seats.check(recipe.env, "evaluation.seats")
    (recipe.evaluation.seats or recipe.seats).check_evaluated(recipe.env, recipe.evaluation.split)
    check_learning(recipe)
    check_programs(recipe)
    check_browsers(recipe)
    pass_columns = PASS_COLUMNS | (
        recipe.backend.pass_columns if isinstance(recipe.backend, HasPassColumns) else frozenset()
    )
    for number, stage in enumerate(recipe.stages):
        before = recipe.stages[number - 1].of_models() if number else {}
        for model, own in stage.of_models().items():
            _check_stage(own, model, before[model].streams if model in before else (), pass_columns, recipe)
    if not recipe.stages[-1].trains:
        raise ConfigError(
            f"stage '{recipe.stages[-1].name}' is the last one and does not train, so nothing uses what it records: "
            "add a stage that trains on it, or play with `sojourn eval`"
        )
    check_reward_models(recipe)
    _check_named_seats(recipe)
    _check_words(recipe)
    check_names(recipe)
    check_further_models(recipe)
    _check_search(recipe)
    _check_steering(recipe)
    check_sub_agents(recipe)
    _check_lookahead(recipe)
    _check_critic(recipe)
    _check_recorded(recipe)
    _check_max_tokens(recipe)


def _check_steering(recipe: Recipe) -> None:
    """Refuses to steer evaluations by the vector of another model, or where the policy's sampler cannot."""
    steering = recipe.evaluation.steering
    if steering is None:
        return
    if not (isinstance(recipe.backend, Steers) and recipe.backend.steers):
        raise ConfigError(
            "evaluation.steering adds to hidden states, which only our own engine can: use backend.name = 'torch', or "
            "with 'ray' backend.samplers.engine = 'sojourn'"
        )
    steering.check(recipe.model.name, "evaluation.steering")


def _check_stage(
    stage: Stage, model: str, streams_before: Sequence[Stream], pass_columns: frozenset[str], recipe: Recipe
) -> None:
    """Refuses a stage, as it is for one of the models that learn in it, whose components do not fit each other."""
    streams = {stream.provides for stream in stage.streams}
    available = streams | provided(stage.estimator)
    for component in (stage.estimator, *stage.losses):
        of_pass = pass_columns if component in stage.losses else frozenset()
        for need in sorted(component.needs - available - of_pass):
            raise ConfigError(f"stage '{stage.name}': {type(component).__name__} needs {_remedy(stage, need)}")
    if len(streams) < len(stage.streams):
        raise ConfigError(f"stage '{stage.name}': two streams provide the same values: keep one of the two")
    _check_origins(stage)
    _check_frozen(stage, streams_before)
    _check_valid(stage)
    _check_early_stop(stage, recipe.evaluation.every)
    _check_columns(stage)
    if stage.trains:
        _check_group_size(stage, model, recipe)
    needed = frozenset().union(stage.estimator.needs, *(loss.needs - pass_columns for loss in stage.losses))
    for stream in stage.streams:
        alone = not stage.trains and isinstance(stream, Learns) and not frozen(stream)
        if stream.provides not in needed and not alone:
            raise ConfigError(
                f"stage '{stage.name}': nothing uses the stream '{stream.provides}': remove it, or name "
                "it in record.streams, to record it only"
            )


def _check_named_seats(recipe: Recipe) -> None:
    """Refuses a reward for a seat that no world has, and an estimator for one that is no called agent's either."""
    known = {seat for world in worlds_of(recipe.env) for seat in seats_of_world(world)}
    for reward in with_bases([recipe.reward]):
        _require_seats("reward", reward, known)
    for stage in recipe.stages:
        for own in stage.of_models().values() if stage.trains else ():
            for estimator in with_bases([own.estimator]):
                _require_seats(f"stage '{own.name}'", estimator, known | sub_agent_models(recipe.agent).keys())


def _require_seats(where: str, component: object, known: Set[str]) -> None:
    for seat in sorted(component.named_seats - known) if isinstance(component, NamesSeats) else ():
        raise ConfigError(
            f"{where}: {type(component).__name__} is for the seat '{seat}', but those who act are "
            f"{', '.join(sorted(known))}: name one of them"
        )


def _check_words(recipe: Recipe) -> None:
    """Refuses a stream that reads texts which no reward writes."""
    rewards = with_bases([recipe.reward])
    written = frozenset[str]().union(*(one.writes for one in rewards if isinstance(one, WritesWords)))
    for stage in (own for one in recipe.stages for own in one.of_models().values()):
        for stream in (*stage.streams, *recipe.record.streams):
            for kind in sorted(stream.reads_words - written) if isinstance(stream, ReadsWords) else ():
                raise ConfigError(
                    f"stage '{stage.name}': {type(stream).__name__} reads a text '{kind}' of each turn, which no "
                    f"reward writes: use one that does, such as reward = {{name = 'next_state', {kind}s = true}}"
                )


def _check_recorded(recipe: Recipe) -> None:
    """Refuses recorded streams that would change what is trained: those that learn, read a critic, or ask a
    model."""
    for stream in recipe.record.streams:
        if isinstance(stream, Learns) or reads_critic(stream) or asked_models(stream) or asked_for_text(stream):
            raise ConfigError(
                f"record.streams: {type(stream).__name__} learns, reads a critic or asks a model: give it to a stage "
                "that uses it"
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


def _check_search(recipe: Recipe) -> None:
    """Refuses plays that fork where the agent searches, as its seats cannot be copied with their searches."""
    for stage in recipe.stages if isinstance(recipe.agent, LooksAhead) else ():
        if any(isinstance(part, Branches) and part.forks for part in parts_of(stage.groups)):
            raise ConfigError(
                f"stage '{stage.name}': groups fork the plays of {type(recipe.agent).__name__}, which itself tries "
                "actions in copies of them: have the run's agent be one that does not search, or leave out what forks "
                "(groups.branching, or the source searched)"
            )


def _check_lookahead(recipe: Recipe) -> None:
    """Refuses cycles that are longer than a stage has updates, as none would end in an outer step; a critic's, where
    all stages are too short."""
    trained = [own for stage in recipe.stages if stage.trains and stage.steps for own in stage.of_models().values()]
    updates = [stage.steps * stage.minibatches for stage in trained]
    optims = [(f"stages.{stage.name}", stage.optim, most) for stage, most in zip(trained, updates, strict=True)]
    optims += [("critic", recipe.critic.optim, max(updates))] if recipe.critic is not None and updates else []
    for path, optim, most in optims:
        if optim.lookahead is not None and optim.lookahead.every > most:
            raise ConfigError(
                f"{path}.optim.lookahead.every = {optim.lookahead.every}: a stage has {most} updates, so that no cycle "
                f"ends: expected at most {most}, or more steps or minibatches"
            )


def _check_critic(recipe: Recipe) -> None:
    """Refuses a critic that nothing reads, a missing one, and one that nothing trains, since its values stay 0."""
    rewards = [one for one in with_bases([recipe.reward]) if CRITIC in value_models(one)]
    readers = [(s, part) for s in recipe.stages for part in [*_critic_readers(s, recipe.agent), *rewards]]
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
    for stage in recipe.stages:
        _check_asked_critic(stage, recipe)


def _check_asked_critic(stage: Stage, recipe: Recipe) -> None:
    """Refuses plays that ask a critic which learns meanwhile, as what it says would depend on timing, and searches of
    several seats by a critic, which knows the state of one."""
    for part in parts_of(stage.groups):
        asks = asks_critic(part) or (part.live and asks_critic(recipe.agent))
        judged = part.live and CRITIC in recipe.value_models
        if (asks or judged) and (lag := max_lag(part)):
            raise ConfigError(
                f"stage '{stage.name}': groups.max_lag = {lag} with plays that ask the critic, or are scored "
                "by it, which learns meanwhile: expected max_lag = 0"
            )
        searches = part.agent if isinstance(part, Searched) else recipe.agent
        if asks and asks_critic(searches) and any(len(seats_of_world(world)) > 1 for world in worlds_of(recipe.env)):
            raise ConfigError(
                f"stage '{stage.name}': {type(searches).__name__} asks the critic in a world of several seats, but it "
                "values the state of the seat that is to act alone: leave `critic` out"
            )


def _check_max_tokens(recipe: Recipe) -> None:
    """Refuses turns that may be as long as the whole context."""
    max_context = recipe.backend.max_context if isinstance(recipe.backend, HasMaxContext) else None
    if max_context is not None and recipe.sampling.max_tokens >= max_context:
        raise ConfigError(
            f"sampling.max_tokens = {recipe.sampling.max_tokens} leaves no room for a prompt in backend.max_context = "
            f"{max_context}: lower the first, or raise the second"
        )


def _critic_readers(stage: Stage, agent: Agent) -> list[object]:
    """Returns what reads the critic's values in a stage, by itself or while plays go on."""
    asking = [part for part in parts_of(stage.groups) if asks_critic(part)]
    asking += [agent] if asks_critic(agent) and stage.groups.live else []
    losses = [loss for loss in stage.losses if "critic" in loss.needs]
    return [*filter(reads_critic, stage.streams), *losses, *asking]


def _check_origins(stage: Stage) -> None:
    """Refuses a loss, an estimator or a stream for groups that no source gives, and a source whose groups no loss
    trains."""
    given = [origin_of(part) for part in parts_of(stage.groups)]
    for component in with_bases((stage.estimator, *stage.losses, *stage.streams)):
        for origin in component.origins if isinstance(component, NamesOrigins) else ():
            if origin not in given:
                raise ConfigError(
                    f"stage '{stage.name}': {type(component).__name__} names the origin '{origin}', of which the stage "
                    f"has no groups: {nearest(origin, dict.fromkeys(given))}"
                )
    for part, origin in zip(parts_of(stage.groups), given, strict=True):
        if stage.trains and not applied(stage.losses, origin):
            raise ConfigError(
                f"stage '{stage.name}': no loss is applied to the groups of {type(part).__name__}: add one, such as "
                f"{{name = 'of_origin', origins = ['{origin}'], base = {{name = 'nll'}}}}, or remove the source"
            )


def _check_frozen(stage: Stage, before: Sequence[Stream]) -> None:
    """Refuses a frozen stream that has learned nothing, as the stage before has none that is equal."""
    for stream in filter(frozen, stage.streams):
        if stream not in before:
            raise ConfigError(
                f"stage '{stage.name}': {type(stream).__name__} is frozen, but no equal stream learns in the stage "
                "before: give that stage one with the same keys, without `frozen`; with trains = false, it trains the "
                "stream alone"
            )


def _check_columns(stage: Stage) -> None:
    """Refuses two losses that give their values the same name, as the second would overwrite the first's."""
    for origin in dict.fromkeys(map(origin_of, parts_of(stage.groups))):
        losses = applied(stage.losses, origin)
        own = [loss for loss in with_bases(losses) if not isinstance(loss, HasBases)]  # others pass on their bases'
        names = [type(loss).__name__ for loss in own if isinstance(loss, HasColumns | Chooses)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(
                f"stage '{stage.name}': losses has {twice[0]} twice, whose columns would be the same: keep one"
            )
    comparing = {loss for loss in with_bases(stage.losses) if isinstance(loss, ComparesDistributions)}
    columns = sorted(loss.column for loss in comparing)
    if same := [column for column, other in pairwise(columns) if column == other]:
        raise ConfigError(
            f"stage '{stage.name}': two losses compare distributions by {same[0]}, each in its own way: give them the "
            "same keys, or one of them another divergence"
        )


def _check_group_size(stage: Stage, model: str, recipe: Recipe) -> None:
    """Refuses groups whose credit would be 0, as there is nothing in them to compare an episode with, and more
    minibatches than there are trajectories."""
    for part in parts_of(stage.groups):
        [estimator] = applied([stage.estimator], origin_of(part))
        size, min_size = group_size(part), min_group_size(estimator)
        if size is not None and size < min_size:
            raise ConfigError(
                f"stage '{stage.name}': {type(estimator).__name__} compares the episodes of a group, and learns "
                f"nothing from groups of {size}: expected groups of at least {min_size} from {type(part).__name__}, or "
                "an estimator such as reinforce"
                + (f", or by_origin with another for '{origin_of(part)}'" if part is not stage.groups else "")
            )
    sizes = [group_size(part) for part in parts_of(stage.groups)]
    if None in sizes or not stage.groups.live:
        return
    if model in recipe.called:
        return  # it has as many trajectories as calls
    seats = max(recipe.seats.most_taken(seats_of_world(world), model) for world in worlds_of(recipe.env))
    played = sum(part.width * (group_size(part) or 0) for part in parts_of(stage.groups))
    if stage.minibatches > (trajectories := played * seats):
        raise ConfigError(
            f"stage '{stage.name}': minibatches = {stage.minibatches}, but a step has {trajectories} trajectories: "
            "expected at most as many minibatches"
        )


def _check_early_stop(stage: Stage, every: int) -> None:
    """Refuses an early stop in a stage that has too few evaluations within it for that."""
    count, rule = evaluations_within(stage.steps, every), stage.early_stop
    if not rule.evaluates or count > rule.patience:
        return
    needed = f"more than {rule.patience}" if rule.patience else "at least one"
    raise ConfigError(
        f"stage '{stage.name}': early_stop needs {needed} of the evaluations within the stage, but evaluation.every = "
        f"{every} gives {count} in its {stage.steps} steps: set evaluation.every to at most "
        f"{max((stage.steps - 1) // (rule.patience + 1), 1)}, or remove early_stop"
    )


def _check_valid(stage: Stage) -> None:
    """Refuses a loss that is wrong for off-policy tokens, where it is applied to them: with a lag, with a source that
    is not live, and in every minibatch after the first."""
    for part in parts_of(stage.groups):
        lag = max_lag(part)
        name = type(part).__name__
        slots = name == Slots.__name__
        cause = f"groups.max_lag = {lag} gives older ones" if slots else f"{name} gives other ones"
        for loss in applied(stage.losses, origin_of(part)) if lag or not part.live else ():
            if "lag" not in valid_for(loss):
                remedy = "ppo, or losses = [{name = 'importance', base = {...}}]"
                raise ConfigError(
                    f"stage '{stage.name}': {type(loss).__name__} is valid only for samples of the current weights, "
                    f"but {cause}: use {remedy if part.live else remedy + ', or nll to imitate them'}"
                )
    for loss in stage.losses if stage.minibatches > 1 else ():
        name = type(loss).__name__
        if isinstance(loss, Compares) and loss.compares:
            raise ConfigError(
                f"stage '{stage.name}': {name} compares the trajectories of a step with each other, which "
                f"minibatches = {stage.minibatches} would divide: set it to 1"
            )
        if "updates" not in valid_for(loss):
            raise ConfigError(
                f"stage '{stage.name}': {name} is valid only for samples of the current weights, but after the first "
                f"of {stage.minibatches} minibatches the weights have changed: use ppo, or minibatches = 1"
            )
