"""Run folders with a checkpoint of changed weights of any small model: what exports are tested on, made in a second."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_models
import numpy as np
import torch
import trained_run

from sojourn.backends.torch.models import loading, tiny
from sojourn.backends.torch.trainer.decoder import base_of
from sojourn.config import toml
from sojourn.record import checkpoint
from sojourn.record.run import RunFolder
from sojourn.train.resolve import resolve
from sojourn.types import Prompt

TEXT = "<|im_start|>user\nOpen the red door, then answer.<|im_end|>\n<|im_start|>assistant\nopen door 5<|im_end|>"


def base(folder: Path, family: str) -> Path:
    """Saves a random model of a family with the tokenizer of `tiny`."""
    tokenizer = tiny.build_tokenizer()
    model = engine_models.build(family, vocabulary=len(tokenizer))
    with loading.quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def run(path: Path, *overrides: str) -> tuple[Path, Any, np.ndarray]:
    """Makes a run folder whose only checkpoint holds weights that training might give. Returns the folder, the logits
    (P, V) of the trained model, and the log-probabilities (P - 1,) that the sampler gives the same tokens."""
    file = path.with_name(f"{path.name}.toml")
    file.write_text(trained_run.RECIPE)
    resolved = resolve(toml.read(file, overrides))
    recipe = resolved.recipe
    with RunFolder.create(path, toml.dump(resolved.table)) as folder:
        opened = recipe.backend.open(recipe.model, recipe.renderer, recipe.seed, None, None)
        trainer: Any = opened.trainer
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in trainer.trainable.values():
                parameter += torch.randn_like(parameter) * 0.02
        state = {"stage": 0, "step": 1, "parts": {"trainer": {"version": 1, "step": 1}}}
        saved = checkpoint.save(folder.checkpoints, 1, lambda at: trainer.save(at, weights_only=True), state, mark=True)
        tokens = tokens_of(TEXT)
        scores = asyncio.run(_scores(opened, tokens))
        return path, _logits(recipe, saved, tokens), scores


def _logits(recipe: Any, saved: checkpoint.Checkpoint, tokens: np.ndarray) -> torch.Tensor:
    """Returns the logits of a trainer without kernels, with attention that needs no tree of tokens."""
    plain = replace(recipe.backend, kernel=False).open(recipe.model, recipe.renderer, recipe.seed, None, None)
    trainer: Any = plain.trainer
    trainer.load(saved.weights, weights_only=True)
    model = base_of(trainer.model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens)[None]).logits[0]
    asyncio.run(plain.sampler.close())
    trainer.close()
    return logits


def tokens_of(text: str) -> np.ndarray:
    return np.array(tiny.build_tokenizer().encode(text, add_special_tokens=False))


async def _scores(opened: Any, tokens: np.ndarray) -> np.ndarray:
    await opened.trainer.publish()
    scores = await opened.sampler.score(Prompt(tokens))
    await opened.sampler.close()
    opened.trainer.close()
    return scores
