"""Random adapters over tiny models, and the models that they make when they are merged."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from sojourn.backends.torch.models.adapters import LowRank


def linear_layers(model: Any) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not model.get_output_embeddings():
            yield name, module


def random_adapter(model: Any, seed: int, rank: int = 4, size: float = 0.3) -> dict[str, LowRank]:
    """Returns an adapter over all linear layers, that changes their outputs by about the fraction `size`."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    found = {}
    for name, module in linear_layers(model):
        outputs, inputs = module.weight.shape[:: -1 if isinstance(module, Conv1D) else 1]
        down, up = normal(rank, inputs), normal(outputs, rank)
        scale = size * module.weight.detach().float().norm() / (up @ down).norm()
        found[name] = LowRank(down, up * scale)
    return found


@torch.no_grad()
def with_merged(model: Any, adapter: dict[str, LowRank]) -> Any:
    """Returns a copy of the model with the adapter added to its weights."""
    merged = copy.deepcopy(model)
    for name, pair in adapter.items():
        module = merged.get_submodule(name)
        change = pair.up @ pair.down
        module.weight += (change.T if isinstance(module, Conv1D) else change).to(module.weight.dtype)
    return merged
