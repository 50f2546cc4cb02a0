"""Samples adapters of the policy's snapshots with the policy's samplers, over the base that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from sojourn.backends.ray.cluster import imported
from sojourn.backends.ray.packed_adapters import NamedAdapter, PackedAdapter
from sojourn.backends.ray.packed_weights import pack
from sojourn.backends.ray.samplers import ReplicatedSampler
from sojourn.models.spec import Lora
from sojourn.types import FloatArray, Prompt, Sample, SamplingParams


@dataclass(frozen=True)
class ReplicatedAdapter:
    """Samples an adapter with the policy's replicas (`protocols.Sampler`, `AllowsOlder`); `close` drops it there."""

    replicas: ReplicatedSampler
    adapter: NamedAdapter
    oldest: int | None = None  # version of the policy's weights, by which requests are answered; None: the newest

    def since_now(self) -> ReplicatedAdapter:
        return replace(self, oldest=self.replicas.version)

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        return await self.replicas.sample(prompt, replace(params, model=self.adapter.name), self.oldest, self.adapter)

    async def score(self, prompt: Prompt) -> FloatArray:
        return await self.replicas.score(prompt, self.oldest, self.adapter)

    async def close(self) -> None:
        await self.replicas.drop_adapter(self.adapter.name)


def adapters_over(replicas: ReplicatedSampler, lora: Lora) -> Callable[[str, Path], Awaitable[ReplicatedAdapter]]:
    """Returns a function that opens the adapter of a checkpoint's folder under a name. The replicas know it by another
    one each time, as they may sample an earlier one of that name still, which is dropped."""
    numbers = count()

    async def open_adapter(name: str, weights: Path) -> ReplicatedAdapter:
        packed = await asyncio.to_thread(_read, weights, lora)
        return ReplicatedAdapter(replicas, NamedAdapter(f"{name} {next(numbers)}", imported().put(packed)))

    return open_adapter


def _read(folder: Path, lora: Lora) -> PackedAdapter:
    from sojourn.backends.torch.models.stored import stored
    from sojourn.backends.torch.trainer.weight_files import WEIGHTS

    return PackedAdapter(pack((name, tensor.whole()) for name, tensor in stored(folder / WEIGHTS)), lora)
