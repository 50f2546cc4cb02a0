"""Low-rank adapters as samplers take them: apart from the weights that they are added to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from sojourn.backends.torch.models.stored import stored
from sojourn.backends.torch.trainer.weight_files import WEIGHTS
from sojourn.errors import ModelError
from sojourn.models.spec import Lora

PREFIX, ENDING = "base_model.model.", ".default.weight"  # of peft's names
DOWN, UP = ".lora_A", ".lora_B"


class LowRank(NamedTuple):
    """Two factors, by which an adapter adds x @ down.T @ up.T to a linear layer's output."""

    down: torch.Tensor  # (rank, inputs): peft's A
    up: torch.Tensor  # (outputs, rank): peft's B, scaled by alpha / rank

    @property
    def rank(self) -> int:
        return len(self.down)


Adapter = Mapping[str, LowRank]  # by the linear layer's name in the model of transformers


def adapter_of(trained: Iterable[tuple[str, torch.Tensor]], lora: Lora) -> Adapter:
    """Returns the adapter whose tensors are trained, by peft's names, as a checkpoint or an adapted model has them."""
    tensors = dict(trained)
    names = [name.removesuffix(DOWN + ENDING) for name in tensors if name.endswith(DOWN + ENDING)]
    if 2 * len(names) != len(tensors) or not names:
        odd = next((name for name in tensors if not name.endswith((DOWN + ENDING, UP + ENDING))), "none of them")
        raise ModelError(
            f"an adapter was expected, two tensors for each layer, but there are {len(tensors)} ('{odd}'): use the "
            "weights of a run that trains adapters alone"
        )
    scale = lora.alpha / lora.rank
    return {
        name.removeprefix(PREFIX): LowRank(
            tensors[name + DOWN + ENDING].detach(), tensors[name + UP + ENDING].detach() * scale
        )
        for name in names
    }


def read_adapter(folder: Path, lora: Lora) -> Adapter:
    """Returns the adapter in a checkpoint's folder of weights."""
    return adapter_of(((name, tensor.whole()) for name, tensor in stored(folder / WEIGHTS)), lora)
