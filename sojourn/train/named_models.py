"""The further models of a recipe, `[models.NAME]`: finds, identifies and opens them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sojourn.abilities import (
    AddsContext,
    ComparesDistributions,
    ComparesLikeliest,
    Identifies,
    OpensEndpoints,
    OpensModels,
    OpensPlayers,
    ScoresTokens,
    SharesBase,
    asked_models,
    reads_critic,
)
from sojourn.composite import with_bases
from sojourn.config.registry import construct
from sojourn.errors import ConfigError, RecordError
from sojourn.models.answers import earlier_answers
from sojourn.models.endpoint import endpoint_of
from sojourn.models.prompt_scorer import PromptScorer
from sojourn.models.spec import FrozenModel, Model, Sampling, ServedModel
from sojourn.protocols import Opened, Renderer, Sampler, Trainer
from sojourn.record.checkpoint import Checkpoint
from sojourn.record.run import RunFolder
from sojourn.record.run_weights import NamedRun, find_weights
from sojourn.timeline import Timeline
from sojourn.train.asked_models import check_asked, check_served_seats
from sojourn.train.recipe import Recipe, Stage
from sojourn.train.routed_sampler import RoutedSampler
from sojourn.train.snapshots import POLICY, SnapshotPool

OF_THE_POLICY = frozenset({"policy", "reference"})  # the present weights, and those that the stage began with
RESERVED = OF_THE_POLICY | {"critic"}


class FoundModel(NamedTuple):
    """A model that can be opened: `seed` decides the initial weights of one that is built from scratch, and
    `checkpoint` holds those that a run trained, None where it is as its name says."""

    model: Model
    seed: int
    checkpoint: Checkpoint | None

    @property
    def weights(self) -> Path | None:
        return self.checkpoint.weights if self.checkpoint is not None else None


def check_names(recipe: Recipe) -> None:
    """Refuses further models with a name that is taken, those that no stage asks, and a stage that asks one that is not
    there."""
    for name in recipe.models:
        if name in RESERVED:
            raise ConfigError(f"models.{name}: '{name}' is the run's own model: give this one another name")
    for stage in recipe.stages:
        for stream in stage.streams:
            for name in sorted(asked_models(stream)):
                if name not in recipe.models:
                    known = ", ".join(sorted(OF_THE_POLICY | recipe.models.keys()))
                    raise ConfigError(
                        f"stage '{stage.name}': {type(stream).__name__} asks the model '{name}', but there are "
                        f"{known}: add a table [models.{name}]"
                    )
                if recipe.models[name].snapshots is not None:
                    raise ConfigError(
                        f"stage '{stage.name}': {type(stream).__name__} asks the model '{name}', which is a pool of "
                        "snapshots: these take seats alone: name another model, or 'reference'"
                    )
    _check_seated(recipe)
    check_asked(recipe)
    check_served_seats(recipe)
    scoring = _asked_of_trainer(recipe)
    used = scoring | recipe.seated | recipe.asked_for_text | recipe.value_models
    if unused := sorted(recipe.models.keys() - used):
        raise ConfigError(
            f"models.{unused[0]}: nothing asks this model: name it in a stream, such as streams = [{{name = 'teacher',"
            f" model = '{unused[0]}'}}], in a seat, such as seats.opponents = ['{unused[0]}'], or in a reward, such as "
            f"reward = {{name = 'judge', model = '{unused[0]}'}}, or remove the table"
        )
    check_endpoints(recipe)
    if (scoring or recipe.players) and not isinstance(recipe.backend, OpensModels):
        raise ConfigError(
            f"models: {type(recipe.backend).__name__} opens no models beside the policy: use backend = {{name = "
            "'torch'}"
        )


def _asked_of_trainer(recipe: Recipe) -> set[str]:
    """Returns the models that score tokens beside the policy."""
    return {name for stage in recipe.stages for stream in stage.streams for name in asked_models(stream)}


def _check_seated(recipe: Recipe) -> None:
    """Refuses models in seats that cannot sit there."""
    for name in sorted(recipe.seated):
        where, what = ("agent", "act for it") if name in recipe.called else ("seats", "take a seat")
        if name not in recipe.models:
            known = ", ".join(sorted({"policy", *recipe.models}))
            raise ConfigError(
                f"{where}: the model '{name}' is to {what}, but there are {known}: add a table [models.{name}]"
            )
        if name in recipe.called and recipe.models[name].endpoint is not None:
            raise ConfigError(
                f"{where}: models.{name} is behind an endpoint, which takes the seats of worlds alone: give it a "
                "name or weights"
            )
        if name in recipe.called and recipe.models[name].snapshots is not None:
            raise ConfigError(
                f"{where}: models.{name} is a pool of snapshots, which take the seats of worlds alone: name another "
                "model"
            )
    if recipe.players and not isinstance(recipe.backend, OpensPlayers):
        where = "seats" if recipe.seated else "reward, or agent"
        raise ConfigError(
            f"{where}: {type(recipe.backend).__name__} opens no models that sample beside the policy: use backend = "
            "{name = 'torch'}, or give the model an endpoint"
        )


def check_learning(recipe: Recipe) -> None:
    """Refuses models that cannot learn beside the policy, and adapters of those that do not."""
    for stage in recipe.stages:
        for name, own in stage.of_models().items():
            if name == POLICY and name not in stage.learners:
                continue
            where = f"stages.{stage.name}.learners.{name}"
            if name in RESERVED:
                raise ConfigError(f"{where}: '{name}' is the run's own model, which every stage trains: leave it out")
            if name not in recipe.acting:
                raise ConfigError(
                    f"{where}: the model takes no seat in training, so that it would have nothing to learn from: name "
                    f"it in [seats], such as seats.opponents = ['{name}'], or as the model of a sub-agent"
                )
            if name in recipe.models and recipe.models[name].snapshots is not None:
                raise ConfigError(f"{where}: snapshots are earlier versions of the policy, which do not learn")
            if name in recipe.served_seats:
                raise ConfigError(
                    f"{where}: the model is behind an endpoint, whose weights are not here: give it a name, or leave "
                    "the learner out"
                )
            if asked := sorted(model for stream in own.streams for model in asked_models(stream)):
                raise ConfigError(f"{where}: its streams ask the model '{asked[0]}', which only the policy's may")
            reading = [loss for loss in own.losses if "critic" in loss.needs]
            for part in (*reading, *filter(reads_critic, own.streams)):
                raise ConfigError(f"{where}: {type(part).__name__} needs a critic, which only the policy has")
    for name, model in recipe.models.items():
        if model.lora is not None and name not in recipe.learning:
            raise ConfigError(
                f"models.{name}.lora: no stage trains this model: name it among the learners of a stage, such as "
                f"learners = {{ {name} = {{}} }}, or leave lora out"
            )


def check_endpoints(recipe: Recipe) -> None:
    """Refuses a stage that asks more of a model behind an endpoint than its server can say."""
    for name, served in _scoring_endpoints(recipe).items():
        if not isinstance(recipe.backend, OpensEndpoints):
            raise ConfigError(
                f"models.{name}.endpoint: {type(recipe.backend).__name__} asks no endpoints: use backend = {{name = "
                "'torch'}"
            )
        for stage in recipe.stages:
            if any(name in asked_models(stream) for stream in stage.streams):
                _check_stage(stage, name, served, recipe.sampling)


def _check_stage(stage: Stage, name: str, served: ServedModel, sampling: Sampling) -> None:
    """Refuses losses that read more of a served model's distributions than its likeliest tokens, and tokens that are
    sampled at another temperature than that at which it scores."""
    for loss in with_bases(stage.losses):
        if not isinstance(loss, ComparesDistributions):
            continue
        kind = type(loss).__name__
        if not isinstance(loss, ComparesLikeliest):
            raise ConfigError(
                f"stage '{stage.name}': {kind} compares whole distributions, but models.{name} is behind an endpoint, "
                "which gives its likeliest tokens alone: use the loss distill with top_k, or a model that is here"
            )
        if not 0 < loss.top_k <= served.top_k:
            remedy = (
                f"set it to at most {served.top_k}, or raise the endpoint's top_k (and its server's --max-logprobs)"
            )
            if not served.top_k:
                remedy = "set the endpoint's top_k to at least 1, and that of the loss to no more"
            raise ConfigError(
                f"stage '{stage.name}': {kind} has top_k = {loss.top_k}{'' if loss.top_k else ', all tokens'}, but "
                f"models.{name}.endpoint gives the {served.top_k} likeliest: {remedy}"
            )
    if stage.groups.live and sampling.temperature != 1:
        raise ConfigError(
            f"sampling.temperature = {sampling.temperature:g}: stage '{stage.name}' asks models.{name} behind an "
            "endpoint, which scores tokens at temperature 1: set it to 1, or use a model without an endpoint"
        )


def served_models(recipe: Recipe) -> dict[str, ServedModel]:
    """Returns the further models that are behind endpoints, by their names."""
    return {name: model.endpoint for name, model in recipe.models.items() if model.endpoint is not None}


def _scoring_endpoints(recipe: Recipe) -> dict[str, ServedModel]:
    """Returns those that score tokens."""
    return {name: served for name, served in served_models(recipe).items() if name in _asked_of_trainer(recipe)}


def find_models(recipe: Recipe) -> dict[str, FoundModel]:
    """Returns the further models that have weights of their own here, by their names. Raises `RecordError` for weights
    that no run has."""
    return {
        name: find_model(name, model, recipe.seed)
        for name, model in recipe.models.items()
        if model.endpoint is None and model.snapshots is None
    }


def check_models_open(recipe: Recipe) -> None:
    """Refuses models that cannot be found, or cannot score what the policy samples, without loading anything, and
    endpoints that cannot be asked, without asking them."""
    for name, served in served_models(recipe).items():
        endpoint_of(name, served)
        if served.answers:
            earlier_answers(served.answers)
    if not isinstance(recipe.backend, OpensModels):
        return
    for name, found in find_models(recipe).items():
        recipe.backend.check_model(name, found.model, recipe.model)


async def open_models(recipe: Recipe, trainer: Trainer) -> None:
    """Opens the further models, which the trainer may then ask. Endpoints come first, as one that does not answer is
    soon known."""
    if isinstance(recipe.backend, OpensEndpoints):
        for name, served in _scoring_endpoints(recipe).items():
            await recipe.backend.open_endpoint(name, PromptScorer.of(name, served), recipe.model, trainer)
    if not isinstance(recipe.backend, OpensModels):
        return
    asked = _asked_of_trainer(recipe)
    for name, found in find_models(recipe).items():
        if name in asked:
            recipe.backend.open_model(name, found.model, found.weights, found.seed, recipe.model, trainer)


class Players(NamedTuple):
    """The sampler of the policy and of all models that sample beside it, the pools of its own snapshots, and the
    trainers of all models that learn, the policy's first."""

    sampler: Sampler
    pools: Mapping[str, SnapshotPool]
    trainers: Mapping[str, Trainer]


async def open_players(recipe: Recipe, opened: Opened, timeline: Timeline) -> Players:
    """Opens the models that take seats beside the policy, or are asked for text. Snapshots are opened as they are made;
    those of a policy that trains adapters are adapters in its own sampler, where the backend can."""
    players: dict[str, Sampler] = {}
    trainers = {POLICY: opened.trainer}
    sampling = recipe.players
    if not sampling:
        return Players(opened.sampler, {}, trainers)
    backend = recipe.backend
    assert isinstance(backend, OpensPlayers), "`check_names` comes first"

    async def snapshot(name: str, weights: Path) -> Sampler:
        return await backend.open_player(name, recipe.model, weights, recipe.seed, recipe.model, opened.renderer)

    snapshots = {name: model.snapshots for name, model in recipe.models.items() if model.snapshots is not None}
    open_snapshot = snapshot
    if snapshots and recipe.model.lora is not None and isinstance(backend, SharesBase) and backend.shares_base:
        open_snapshot = backend.share_base(recipe.model, opened)
    try:
        for name, found in find_models(recipe).items():
            if name in recipe.learning:
                learner = backend.open_learner(name, found.model, found.seed, recipe.model, opened.renderer, timeline)
                players[name], trainers[name] = learner.sampler, learner.trainer
            elif name in sampling:
                players[name] = await backend.open_player(
                    name, found.model, found.weights, found.seed, recipe.model, opened.renderer
                )
    except BaseException:
        for sampler in players.values():
            await sampler.close()
        for name in trainers.keys() - {POLICY}:
            trainers[name].close()
        raise
    pools = {name: SnapshotPool(name, config, open_snapshot, players) for name, config in snapshots.items()}
    return Players(RoutedSampler(opened.sampler, players), pools, trainers)


def check_contexts(recipe: Recipe, trainer: Trainer, renderer: Renderer, max_context: int) -> None:
    """Refuses a text that a model, which is open, could not read beside the longest context of the policy."""
    for stage in recipe.stages:
        for stream in stage.streams:
            if not (isinstance(stream, AddsContext) and isinstance(trainer, ScoresTokens)):
                continue
            more = stream.added_tokens(renderer)
            for model in sorted(stream.all_models):
                limit = trainer.context_of(model)
                if more and max_context + more > limit:
                    raise ConfigError(
                        f"stage '{stage.name}': the text for the model '{model}' takes {more} tokens, but beside a "
                        f"context of {max_context} it reads only {limit - max_context} more: set backend.max_context "
                        f"to at most {limit - more}, or shorten the text"
                    )


def model_identities(recipe: Recipe) -> dict[str, str]:
    """Returns what identifies the weights of each further model, under `models.` and its name; of one behind an
    endpoint, no more than its name there is known."""
    here = {name: _identity(recipe, found) for name, found in find_models(recipe).items()}
    served = {name: f"served as {one.model}" for name, one in served_models(recipe).items()}
    return {f"models.{name}": identity for name, identity in (here | served).items()}


def find_model(name: str, model: FrozenModel, seed: int) -> FoundModel:
    """Returns a further model that has weights of its own here, by the seed of its run. Raises `RecordError` for
    weights that no run has."""
    where = f"models.{name}"
    if not model.weights:
        own = Model(name=model.name, revision=model.revision, dtype=model.dtype, lora=model.lora)
        return FoundModel(own, seed, None)
    path, name = NamedRun.parse(model.weights)
    if not (path / "config.toml").is_file():
        raise RecordError(
            f"{where}.weights = '{model.weights}': there is no run at this path: expected a run folder, such as "
            "runs/x, or runs/x@120 for the weights after 120 steps"
        )
    checkpoint, config = find_weights(path, name).checkpoint, RunFolder.read(path).config
    if checkpoint is None:
        raise RecordError(
            f"{where}.weights = '{model.weights}' names the weights that the run began with: set {where}.name (or its "
            "weights) as that run's model has it"
        )
    table = {**_table(config.get("model")), "dtype": model.dtype, "weights": ""}
    return FoundModel(construct(Model, table, f"the model of {path}").value, int(config.get("seed", 0)), checkpoint)


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _identity(recipe: Recipe, found: FoundModel) -> str:
    """Returns the identity of the base weights and, for those of a run, the checksum of its checkpoint."""
    backend = recipe.backend
    base = backend.identities(found.model, None).get("policy", "") if isinstance(backend, Identifies) else ""
    return f"{base}, weights {found.checkpoint.checksum}" if found.checkpoint is not None else base


def described(role: str, recipe: Recipe) -> str:
    """Returns the name of the model that has a role in a run, "policy", "critic" or `models.NAME`, or its weights."""
    model = recipe.models.get(role.removeprefix("models."))
    if model is not None and model.snapshots is None:
        return model.endpoint.model if model.endpoint is not None else model.name or model.weights
    return recipe.model.name if role == "policy" or recipe.critic is None else recipe.critic.model
