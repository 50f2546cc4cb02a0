"""Writes the model of a run as a folder that other programs load, with a model card.

The backend writes the model itself (`abilities.ExportsModels`); the card with the curve is the same for all.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sojourn.abilities import ExportsModels
from sojourn.errors import ConfigError, RecordError
from sojourn.model_export.card import write_card
from sojourn.record.atomic import sync_tree, writing
from sojourn.record.run import RunFolder
from sojourn.record.run_weights import NamedRun, find_weights
from sojourn.train import resolve as recipes
from sojourn.train.weights import found_weights

FORMATS = ("hf", "merged", "lora", "gguf")  # of all backends; each says which it writes
DTYPES = ("fp32", "bf16")


def export_model(run: str | Path, out: Path, format: str = "hf", dtype: str = "fp32") -> str:
    """Writes the model of a run (RUN, RUN@STAGE or RUN@STEP) into a new folder, whole or not at all.

    Returns which weights they are. Raises `ConfigError` where the run's backend has no such format.
    """
    folder, name = NamedRun.parse(run)
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecordError(f"{out} exists and is not empty: give the export another folder, or move this one away")
    if dtype not in DTYPES:
        raise ConfigError(f"--dtype {dtype}: expected {' or '.join(DTYPES)}")
    weights = find_weights(folder, name)
    recipe = recipes.load(folder).recipe
    backend = recipe.backend
    if not isinstance(backend, ExportsModels) or format not in backend.model_formats:
        known = ", ".join(backend.model_formats) if isinstance(backend, ExportsModels) else "no format"
        raise ConfigError(f"--format {format}: the backend of this run, {type(backend).__name__}, writes {known}")
    start = weights.checkpoint or found_weights(recipe)
    at = start.weights if start is not None else None
    temporary = out.absolute().with_name(f".{out.name}.new-{os.getpid()}")
    with writing(out):
        temporary.mkdir(parents=True)
        try:
            made = backend.export_model(recipe.model, recipe.renderer, recipe.seed, at, format, dtype, temporary)
            write_card(RunFolder.read(folder), recipe, weights, made, temporary, format)
            sync_tree(temporary)
            temporary.replace(out)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return weights.name
