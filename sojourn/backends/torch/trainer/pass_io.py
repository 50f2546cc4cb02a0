"""Holds what a pass over a micro-batch reads and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from sojourn.batch import share
from sojourn.protocols import SelectedTokens
from sojourn.types import Batch, FloatArray, IntArray


class MicroBatch(NamedTuple):
    """A micro-batch with the tree of its prefixes; `indices` are those of its tokens in the batch that it is part of,
    and `where` says which of them are scored. One that `fills` repeats a sequence, without weight, in a process that
    must make as many passes as others; what it computes counts nowhere."""

    batch: Batch
    indices: IntArray
    tree: share.Tree
    where: IntArray
    fills: bool = False

    @classmethod
    def of(cls, batch: Batch, numbers: IntArray, spans: Sequence[IntArray]) -> MicroBatch:
        """Takes the sequences of these numbers; `spans` has, for every sequence, the indices of its tokens in the whole
        batch, of which `batch` may hold a part."""
        taken = batch.take(numbers)
        where = np.flatnonzero(taken.weight)
        return cls(taken, np.concatenate([spans[s] for s in numbers]), share.merge(taken), where)

    @classmethod
    def filler(cls, batch: Batch, spans: Sequence[IntArray]) -> MicroBatch:
        """Repeats the shortest sequence of a batch."""
        shortest = min(range(len(spans)), key=lambda sequence: len(spans[sequence]))
        own = cls.of(batch, np.array([shortest]), spans)
        return own._replace(batch=replace(own.batch, weight=np.zeros_like(own.batch.weight)), fills=True)


def select_tokens(batch: Batch, where: IntArray, device: torch.device | str = "cpu") -> SelectedTokens:
    """Returns the columns of a batch at the indices `where` (n,), as tensors."""

    def floats(values: FloatArray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values[where], dtype=np.float32)).to(device)

    def numbers(values: IntArray) -> torch.Tensor:
        return torch.from_numpy(np.unique(values[where], return_inverse=True)[1]).to(device)

    return SelectedTokens(
        floats(batch.weight),
        floats(batch.logprobs),
        floats(batch.advantages),
        numbers(batch.turn),
        numbers(batch.sequence),
        {name: floats(values) for name, values in batch.streams.items()},
    )
