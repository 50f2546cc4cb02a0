"""The further models of a recipe, `[models.NAME]`: finds, identifies and opens them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sojourn.abilities import AddsContext, Identifies, OpensModels, ScoresTokens, asked_models
from sojourn.config.registry import construct
from sojourn.errors import ConfigError, RecordError
from sojourn.models.spec import FrozenModel, Model
from sojourn.protocols import Renderer, Trainer
from sojourn.record.checkpoint import Checkpoint
from sojourn.record.run import RunFolder
from sojourn.record.run_weights import NamedRun, find_weights
from sojourn.train.recipe import Recipe

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
    asked = set[str]()
    for stage in recipe.stages:
        for stream in stage.streams:
            for name in sorted(asked_models(stream)):
                if name not in recipe.models:
                    known = ", ".join(sorted(OF_THE_POLICY | recipe.models.keys()))
                    raise ConfigError(
                        f"stage '{stage.name}': {type(stream).__name__} asks the model '{name}', but there are "
                        f"{known}: add a table [models.{name}]"
                    )
                asked.add(name)
    if unused := sorted(recipe.models.keys() - asked):
        raise ConfigError(
            f"models.{unused[0]}: no stage asks this model: name it in a stream, such as streams = [{{name = 'teacher',"
            f" model = '{unused[0]}'}}], or remove the table"
        )
    if recipe.models and not isinstance(recipe.backend, OpensModels):
        raise ConfigError(
            f"models: {type(recipe.backend).__name__} opens no models beside the policy: use backend = {{name = "
            "'torch'}"
        )


def find_models(recipe: Recipe) -> dict[str, FoundModel]:
    """Returns the further models by their names. Raises `RecordError` for weights that no run has."""
    return {name: _find(f"models.{name}", model, recipe.seed) for name, model in recipe.models.items()}


def check_models_open(recipe: Recipe) -> None:
    """Refuses models that cannot be found, or cannot score what the policy samples, without loading anything."""
    if not isinstance(recipe.backend, OpensModels):
        return
    for name, found in find_models(recipe).items():
        recipe.backend.check_model(name, found.model, recipe.model)


def open_models(recipe: Recipe, trainer: Trainer) -> None:
    """Opens the further models, which the trainer may then ask."""
    if not isinstance(recipe.backend, OpensModels):
        return
    for name, found in find_models(recipe).items():
        recipe.backend.open_model(name, found.model, found.weights, found.seed, recipe.model, trainer)


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
    """Returns what identifies the weights of each further model, under `models.` and its name."""
    return {f"models.{name}": _identity(recipe, found) for name, found in find_models(recipe).items()}


def _find(where: str, model: FrozenModel, seed: int) -> FoundModel:
    if not model.weights:
        return FoundModel(Model(name=model.name, revision=model.revision, dtype=model.dtype), seed, None)
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
    if model is not None:
        return model.name or model.weights
    return recipe.model.name if role == "policy" or recipe.critic is None else recipe.critic.model
