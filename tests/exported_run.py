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
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sojourn.backends.torch.models import loading, tiny
from sojourn.backends.torch.trainer.decoder import base_of
from sojourn.config import toml
from sojourn.record import checkpoint
from sojourn.record.run import RunFolder
from sojourn.train.resolve import resolve
from sojourn.types import Prompt

TEXT = "<|im_start|>user\nOpen the red door, then answer.<|im_end|>\n"
TOKENS = np.array([(7 * n * n + 3) % 250 for n in range(40)])


def base(folder: Path, family: str, tokenizer: Any = None) -> Path:
    """Saves a random model of a family, with the tokenizer of `tiny` unless another is given."""
    tokenizer = tokenizer or tiny.build_tokenizer()
    model = engine_models.build(family, vocabulary=len(tokenizer))
    with loading.quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def byte_level() -> Any:
    """Builds a tokenizer of bytes and a few longer tokens, of the kind that most models have."""
    merges = [("\u0120", "t"), ("h", "e"), ("\u0120t", "he"), ("o", "o"), ("oo", "r"), ("1", "2"), ("12", "3")]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*letters, *map("".join, merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tiny.SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=tiny.CHAT_TEMPLATE)


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
        scores = asyncio.run(_scores(opened))
        return path, _logits(recipe, saved), scores


def _logits(recipe: Any, saved: checkpoint.Checkpoint) -> torch.Tensor:
    """Returns the logits of a trainer without kernels, with attention that needs no tree of tokens."""
    plain = replace(recipe.backend, kernel=False).open(recipe.model, recipe.renderer, recipe.seed, None, None)
    trainer: Any = plain.trainer
    trainer.load(saved.weights, weights_only=True)
    model = base_of(trainer.model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(torch.from_numpy(TOKENS)[None].to(trainer.passes.device)).logits[0].cpu()
    asyncio.run(plain.sampler.close())
    trainer.close()
    return logits


async def _scores(opened: Any) -> np.ndarray:
    await opened.trainer.publish()
    scores = await opened.sampler.score(Prompt(TOKENS))
    await opened.sampler.close()
    opened.trainer.close()
    return scores
