"""Writes the model of a run as a folder that other programs load, with a model card.

The backend writes the model itself (`abilities.ExportsModels`); the card with the curve is the same for all.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import NamedTuple

from sojourn.abilities import ExportsModels
from sojourn.config import toml
from sojourn.config.lookup import nearest
from sojourn.errors import ConfigError, RecordError
from sojourn.model_export.card import write_card
from sojourn.models.spec import Model
from sojourn.protocols import Backend
from sojourn.record.atomic import new_folder, writing
from sojourn.record.checkpoint import Checkpoint
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.export import FORMATS as EPISODE_FORMATS
from sojourn.record.paired import clear_fall, evaluations
from sojourn.record.run import RunFolder
from sojourn.record.run_weights import NamedRun, available_weights, find_weights
from sojourn.train import resolve
from sojourn.train.named_models import find_model
from sojourn.train.recipe import ModelRecipe
from sojourn.train.seating import POLICY
from sojourn.train.trained_models import folder_of
from sojourn.train.weights import found_weights

DTYPES = ("fp32", "bf16")


def export_model(run: str | Path, out: Path, format: str = "hf", dtype: str = "fp32", model: str = POLICY) -> str:
    """Writes a model of a run (RUN, RUN@STAGE or RUN@STEP) into a new folder, whole or not at all: the policy, or
    another that learned in the run, by its name.

    Returns which weights they are. Raises `ConfigError` where the run's backend has no such format.
    """
    folder, name = NamedRun.parse(run)
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecordError(f"{out} exists and is not empty: give the export another folder, or move this one away")
    if dtype not in DTYPES:
        raise ConfigError(f"--dtype {dtype}: expected {' or '.join(DTYPES)}")
    weights = find_weights(folder, name)
    config = toml.read(folder).data
    recipe = resolve.load_model(config)
    backend = _exporting(recipe.backend, format)
    learned = _learned(recipe, weights.checkpoint, model)
    with writing(out), new_folder(out.absolute()) as temporary:
        made = backend.export_model(
            learned.model, recipe.renderer, recipe.seed, learned.weights, format, dtype, temporary
        )
        write_card(RunFolder.read(folder), config, weights, made, temporary, model)
        mode = stat.S_IMODE((temporary / "README.md").stat().st_mode)
        for file in temporary.iterdir():
            file.chmod(mode)  # safetensors writes files that nobody else may read
    return weights.name


class _Learned(NamedTuple):
    """A model that learned in a run, and the folder of its weights; None where they are as its name says."""

    model: Model
    weights: Path | None


def _learned(recipe: ModelRecipe, checkpoint: Checkpoint | None, model: str) -> _Learned:
    if model == POLICY:
        start = checkpoint or found_weights(recipe)
        return _Learned(recipe.model, start.weights if start is not None else None)
    if model not in recipe.models:
        raise ConfigError(f"--model {model}: {nearest(model, (POLICY, *recipe.models))}")
    if checkpoint is None or not (weights := folder_of(checkpoint.weights, model)).is_dir():
        raise ConfigError(
            f"--model {model}: it did not learn in these weights of the run: name the weights after a stage that has "
            "it among its learners, or export the model that it is"
        )
    found = find_model(model, recipe.models[model], recipe.seed)
    return _Learned(found.model, weights)


def better_weights(run: str | Path) -> str:
    """Returns a sentence where earlier weights, which the run still has, did clearly better than these in the
    evaluations."""
    folder, name = NamedRun.parse(run)
    chosen = find_weights(folder, name)
    held = {one.checkpoint.step if one.checkpoint else 0: one.name for one in available_weights(folder)}
    done = chosen.checkpoint.step if chosen.checkpoint else 0
    with EpisodeStore(folder) as store:
        every = evaluations(RunFolder.read(folder), store)
        own = next((one for one in reversed(every) if one.steps == done), None)
        fall = own and clear_fall([one for one in every if one.steps < done and one.steps in held], own)
    if not fall:
        return ""
    better, worse = held[fall.better.steps], chosen.name
    success = f"{fall.better.success.percent} and {fall.worse.success.percent}"
    return (
        f"the weights '{better}' did clearly better in the evaluations than '{worse}', {success} ({fall.tasks}): "
        f"{folder}@{better} names them"
    )


def _exporting(backend: Backend, format: str) -> ExportsModels:
    """Returns the backend as one that writes models in this format."""
    if not isinstance(backend, ExportsModels):
        raise ConfigError(f"--format {format}: the backend of this run, {type(backend).__name__}, writes no models")
    if format not in backend.model_formats:
        written = "; ".join(f"{name}, {sentence}" for name, sentence in backend.model_formats.items())
        meant = nearest(format, (*EPISODE_FORMATS, *backend.model_formats))
        raise ConfigError(f"unknown format '{format}': {meant}. The model is written as {written}")
    return backend
