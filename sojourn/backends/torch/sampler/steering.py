"""Steers requests: adds a vector to the residual stream at the positions whose output draws a token.

The keys and values of a steered position are not those of an unsteered one with the same tokens. So the prefix tree
knows a steered token by another number, below -1, which holds the number of its steering, too: no prompt finds the
cached pages of steered tokens, nor does a request that is steered in another way. Which rows of a step are steered
follows from these numbers alone. The number -1 stands for places of a page that hold no token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from sojourn.activation_steering import Steering
from sojourn.errors import ModelError
from sojourn.types import IntArray


class SteeredRows(NamedTuple):
    """Rows of a step (n,), and the vector (H,) that is added to them after a layer."""

    layer: int
    vector: torch.Tensor
    rows: torch.Tensor


@dataclass(frozen=True)
class Mark:
    """Renumbers tokens of a model with `vocab_size` tokens, so that they are known to be steered."""

    number: int  # of the steering
    vocab_size: int

    def __call__(self, tokens: Sequence[int] | IntArray) -> IntArray:
        return -2 - (np.asarray(tokens, dtype=np.int64) + self.number * self.vocab_size)


class Steerings:
    """The steerings of one model that requests have asked for, numbered."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        first = next(model.parameters())
        self._layers, self._size = config.num_hidden_layers, config.hidden_size
        self._vocab_size = model.get_input_embeddings().num_embeddings
        self._dtype, self._device = first.dtype, first.device
        self._numbers: dict[Steering, int] = {}
        self._vectors: list[torch.Tensor] = []

    def mark(self, steering: Steering, *, kernel: bool) -> Mark:
        """Returns the mark of a steering's tokens; with `kernel`, the kernel adds the vector, in fp32. Raises
        `ModelError` where it is of another model."""
        if (number := self._numbers.get(steering)) is None:
            if len(steering.vector) != 4 * self._size or not 0 <= steering.layer < self._layers:
                raise ModelError(
                    f"steering adds {len(steering.vector) // 4} numbers after layer {steering.layer}, but the model "
                    f"has {self._size} after each of the layers 0 to {self._layers - 1}: make the vector from a run of "
                    "this model"
                )
            vector = torch.frombuffer(bytearray(steering.vector), dtype=torch.float32)
            self._vectors.append(vector if kernel else vector.to(self._device, self._dtype))
            number = self._numbers[steering] = len(self._numbers)
        return Mark(number, self._vocab_size)

    def read(self, known: IntArray) -> tuple[IntArray, list[SteeredRows]]:
        """Returns the tokens of a step as the prefix tree knows them (N,), and which of its rows are steered."""
        below = known < 0
        if not below.any():
            return known, []
        numbers, tokens = np.divmod(-2 - known, self._vocab_size)
        steered = list[SteeredRows]()
        for steering, number in list(self._numbers.items()):  # which the event loop may add to meanwhile
            rows = np.flatnonzero(below & (numbers == number))
            if len(rows):
                at = torch.from_numpy(rows).to(self._device)
                steered.append(SteeredRows(steering.layer, self._vectors[number], at))
        return np.where(below, tokens, known), steered


def steer(hidden: torch.Tensor, layer: int, steered: Sequence[SteeredRows]) -> None:
    """Adds to the rows of hidden states (N, H) after a layer, in place, what they are steered by."""
    for one in steered:
        if one.layer == layer:
            hidden[one.rows] += one.vector


class SteeredLayers:
    """Steers the layers of a model of transformers, which are told before each step which rows."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._steered: Sequence[SteeredRows] = ()
        self._hooked = set[int]()

    def steer(self, steered: Sequence[SteeredRows]) -> None:
        """Steers rows of the next step."""
        self._steered = steered
        for layer in {one.layer for one in steered} - self._hooked:
            self._layers()[layer].register_forward_hook(lambda _, x, y, layer=layer: self._added(layer, y))
            self._hooked.add(layer)

    def _layers(self) -> Sequence[Any]:
        """Returns the decoder's layers: the longest list of modules that it holds."""
        children = self._model.get_decoder().children()
        return list(max((one for one in children if isinstance(one, torch.nn.ModuleList)), key=len))

    def _added(self, layer: int, output: Any) -> Any:
        hidden = output if isinstance(output, torch.Tensor) else output[0]
        steer(hidden.view(-1, hidden.shape[-1]), layer, self._steered)
        return output
