"""Finds the model that a command names (a run's, a recipe's, a folder of weights, an installed one), and opens it to
sample from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sojourn import threads
from sojourn.backends.torch.backend import Torch
from sojourn.backends.torch.models import gguf, loading
from sojourn.config import toml
from sojourn.config.registry import construct
from sojourn.errors import ConfigError, ModelError
from sojourn.models.spec import Sampling
from sojourn.protocols import Renderer
from sojourn.record.run_weights import NamedRun, find_weights
from sojourn.train.recipe import Evaluation, ModelRecipe
from sojourn.train.weights import found_weights
from sojourn.types import SamplingParams

if TYPE_CHECKING:
    from sojourn.backends.torch.sampler.engine import Engine

EXPECTED = (
    "expected a run folder (or its weights: runs/x@120, runs/x@last, runs/x@warmup, runs/x@before), a recipe, a folder "
    f"of a Hugging Face model, a .gguf file, {', '.join(gguf.PACKAGES)}, tiny, or owner/name of the hub"
)


@dataclass(frozen=True, kw_only=True)
class ServedRecipe(ModelRecipe):
    """Holds what a served model is made of, and how a run samples from it."""

    sampling: Sampling = field(default_factory=Sampling)
    evaluation: Evaluation = field(default_factory=Evaluation)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A model that was found: its name, what it is in words, and the folder of its weights (None: as it was before
    training)."""

    name: str
    description: str
    recipe: ServedRecipe
    weights: Path | None = None

    @property
    def params(self) -> SamplingParams:
        """Returns how the run's evaluations sample."""
        return self.recipe.evaluation.params(self.recipe.sampling)


@dataclass(frozen=True, kw_only=True)
class Served:
    """A model that is open to be sampled from."""

    engine: Engine
    renderer: Renderer
    max_context: int


def find(what: str, overrides: Sequence[str] = (), report: Callable[[str], None] = lambda sentence: None) -> Found:
    """Finds a model by what a command names. Raises where there is none; loads nothing. `report` gets a sentence for
    each damaged checkpoint in whose place another one is taken."""
    named = NamedRun.parse(what)
    if (named.folder / "config.toml").is_file():
        weights = find_weights(*named, report)
        recipe = _recipe(toml.read(named.folder), overrides)
        checkpoint = weights.checkpoint or found_weights(recipe)
        step = f", after {weights.checkpoint.step} steps" if weights.checkpoint is not None else ""
        return Found(
            name=f"{named.folder.resolve().name}@{weights.name}",
            description=f"the weights '{weights.name}' of {named.folder}{step}",
            recipe=recipe,
            weights=checkpoint.weights if checkpoint is not None else None,
        )
    path = Path(what)
    if path.suffix == ".toml" and not path.is_dir():
        recipe = _recipe(toml.read(path), overrides)
        checkpoint = found_weights(recipe)
        return Found(
            name=Path(recipe.model.name).name,
            description=f"the model of {what}, {recipe.model.weights or f'{recipe.model.name}, untrained'}",
            recipe=recipe,
            weights=checkpoint.weights if checkpoint is not None else None,
        )
    _require_model(what)
    recipe = _recipe(toml.Tables({"model": {"name": what}}), overrides)
    return Found(name=path.name, description=f"the model {what}", recipe=recipe)


def release_of(run: Path, weights: Path, name: str) -> Found:
    """Returns the model of a run with weights that it offered to a service."""
    return Found(name=name, description=f"{name} of {run}", recipe=_recipe(toml.read(run), ()), weights=weights)


def open_model(found: Found) -> Served:
    """Loads a model into an engine of its own; there is no trainer."""
    recipe = found.recipe
    backend, model = recipe.backend, recipe.model
    if not isinstance(backend, Torch):
        raise ConfigError(
            f"backend = '{type(backend).__name__}': sojourn serves with its own engine alone: add backend.name=torch, "
            "or export the model (sojourn export) and serve it elsewhere"
        )
    loaded = backend.load(model, recipe.seed)
    if loaded.tokenizer is None:
        raise ModelError(f"model '{model.name}' has no tokenizer: expected a tokenizer.json beside its weights")
    from sojourn.backends.torch.sampler.adapter_sampler import open_trained  # which imports torch

    renderer = recipe.renderer.bind(loaded.tokenizer, loaded.template)
    opens = partial(backend.open_sampler, model=model, stops=renderer.stops)
    engine = open_trained(opens, loaded, model, found.weights, backend.unmerged(model))
    return Served(engine=engine, renderer=renderer, max_context=engine.max_context)


def _recipe(tables: toml.Tables, overrides: Sequence[str]) -> ServedRecipe:
    """Returns the part of a config that a served model is made of; overrides may change nothing else."""
    known = [f.name for f in fields(ServedRecipe)]
    for text in overrides:
        key = text.partition("=")[0].strip().partition(".")[0]
        if key not in known:
            raise ConfigError(f"override '{text}': of a recipe, a served model has {', '.join(known)}: leave it out")
        tables.override(text)
    threads.prepare_for(tables.data)
    return tables.built(
        lambda: construct(ServedRecipe, {key: tables.data[key] for key in known if key in tables.data}, "").value
    )


def _require_model(name: str) -> None:
    """Raises `ConfigError` where a name is that of no model, and says what was looked for."""
    path = Path(name)
    if not path.exists() and ("@" in path.name or (len(path.parts) > 1 and path.parent.is_dir())):
        raise ConfigError(f"'{name}': there is no such run, and no such file or folder: {EXPECTED}")
    if path.is_dir() and not (path / "config.json").is_file():
        raise ConfigError(
            f"'{name}' is neither a run folder (it has no config.toml) nor that of a model (no config.json): {EXPECTED}"
        )
    try:
        loading.resolve(name)
    except ModelError as error:
        kind = "no run folder" if path.exists() else "neither a run folder nor a recipe, as there is no such path"
        raise ConfigError(f"'{name}' is {kind}, and no model that can be loaded: {error}") from error
