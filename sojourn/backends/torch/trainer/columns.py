"""What a pass over part of a batch is given, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from sojourn.backends.torch.trainer.gradient_division import Gradients
from sojourn.batch import share
from sojourn.types import Batch, FloatArray, IntArray


@dataclass(frozen=True)
class Out:
    """For the n tokens that carry weight, in order (see `protocols.Output`)."""

    logprobs: torch.Tensor
    entropy: torch.Tensor
    values: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    columns: Mapping[str, torch.Tensor] = field(default_factory=dict)  # of `pass_columns`, by name


@dataclass(frozen=True)
class Chosen:
    """The batch's columns at the n tokens that carry weight (see `protocols.Selected`)."""

    weight: torch.Tensor
    logprobs: torch.Tensor
    advantages: torch.Tensor
    turn: torch.Tensor
    sequence: torch.Tensor
    streams: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, batch: Batch, where: IntArray, device: torch.device | str = "cpu") -> Chosen:
        def column(values: FloatArray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(values[where], dtype=np.float32)).to(device)

        def numbers(values: IntArray) -> torch.Tensor:
            return torch.from_numpy(np.unique(values[where], return_inverse=True)[1]).to(device)

        return cls(
            column(batch.weight),
            column(batch.logprobs),
            column(batch.advantages),
            numbers(batch.turn),
            numbers(batch.sequence),
            {name: column(values) for name, values in batch.streams.items()},
        )


class Part(NamedTuple):
    """Some sequences of a batch, where their tokens stand in it, and the tree that they are."""

    batch: Batch
    places: IntArray
    tree: share.Tree

    @classmethod
    def of(cls, batch: Batch, numbers: IntArray, spans: Sequence[IntArray]) -> Part:
        taken = batch.take(numbers)
        return cls(taken, np.concatenate([spans[s] for s in numbers]), share.merge(taken))


class Passed(NamedTuple):
    """What a part gave: the gradients of the objective and of further ones, its value, and sums under the weights."""

    gradients: Mapping[str, Gradients]
    objective: float
    sums: Mapping[str, float]
    mass: float
