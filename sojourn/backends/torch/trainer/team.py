"""Processes that train one model together: each computes a share of a batch, and sums over all of them make their
gradients and answers equal.

Every process of a team must ask for the same sums in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor

from sojourn.backends.torch.trainer.context_parallel import ContextGroup

BUCKET_BYTES = 2**26  # of gradients that are added up at once


class Team(Protocol):
    """The processes that train together, and the place of this one among them. `sharded` says whether each holds a part
    of every trained model's weights, and not all of them. Those of a `context` compute each tree of tokens together.

    `sum_numbers` adds up numbers by name, `sum_arrays` arrays in place, and `sum_tensors` tensors like `parameters`, of
    which each process has some: what none has stays None.
    """

    @property
    def rank(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def sharded(self) -> bool: ...
    @property
    def context(self) -> ContextGroup | None: ...

    def sum_numbers(self, numbers: Mapping[str, float]) -> dict[str, float]: ...
    def sum_arrays(self, arrays: Iterable[NDArray[Any]]) -> None: ...
    def sum_tensors(
        self, tensors: Sequence[torch.Tensor | None], parameters: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]: ...


class Alone:
    """A process that trains by itself, whose sums are its own."""

    rank, count, sharded, context = 0, 1, False, None

    def sum_numbers(self, numbers: Mapping[str, float]) -> dict[str, float]:
        return dict(numbers)

    def sum_arrays(self, arrays: Iterable[NDArray[Any]]) -> None:
        pass

    def sum_tensors(
        self, tensors: Sequence[torch.Tensor | None], parameters: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        return list(tensors)


class Together:
    """The processes of torch's default process group. All get the same bits. Each `context` of them, one after the
    other, compute each tree of tokens together."""

    def __init__(self, device: torch.device, *, sharded: bool = False, context: int = 1) -> None:
        self.rank, self.count, self.sharded, self._device = dist.get_rank(), dist.get_world_size(), sharded, device
        self.context: ContextGroup | None = None
        for first in range(0, self.count, context) if context > 1 else ():
            group = dist.new_group(range(first, first + context))  # which all processes must make
            if first <= self.rank < first + context:
                self.context = ContextGroup(self.rank - first, context, group)

    def sum_numbers(self, numbers: Mapping[str, float]) -> dict[str, float]:
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, dict(numbers))
        sums: dict[str, float] = {}
        for own in found:
            for name, value in own.items():
                sums[name] = sums[name] + value if name in sums else value
        return sums

    def sum_arrays(self, arrays: Iterable[NDArray[Any]]) -> None:
        for array in arrays:
            total = torch.from_numpy(array).to(self._device)
            dist.all_reduce(total)
            array[...] = total.cpu().numpy()

    @torch.no_grad()
    def sum_tensors(
        self, tensors: Sequence[torch.Tensor | None], parameters: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        if any(isinstance(parameter, DTensor) for parameter in parameters):
            return list(tensors)  # shards, which were added up as they were computed
        present = torch.tensor([tensor is not None for tensor in tensors], dtype=torch.int32, device=self._device)
        dist.all_reduce(present, dist.ReduceOp.MAX)
        sums = [
            (torch.zeros_like(like) if tensor is None else tensor) if known else None
            for tensor, like, known in zip(tensors, parameters, present.tolist(), strict=True)
        ]
        for bucket in _buckets([tensor for tensor in sums if tensor is not None]):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            dist.all_reduce(flat)
            for tensor, total in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(total.view_as(tensor))
        return sums


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Divides tensors into runs of one dtype that hold about `BUCKET_BYTES`."""
    bucket: list[torch.Tensor] = []
    for tensor in tensors:
        full = sum(one.nbytes for one in bucket) >= BUCKET_BYTES
        if bucket and (full or bucket[0].dtype != tensor.dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
