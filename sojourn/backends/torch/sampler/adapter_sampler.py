"""Adapters of an engine, each as a sampler of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sojourn.abilities import Tell
from sojourn.backends.torch.models.adapters import adapter_of, read_adapter
from sojourn.backends.torch.sampler.engine import Engine
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.models.spec import Lora
from sojourn.types import FloatArray, Prompt, Sample, SamplingParams


@dataclass(frozen=True)
class AdapterSampler:
    """Samples an adapter of an engine, in the steps of the engine's other models; `close` drops the adapter."""

    engine: Engine
    name: str

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        return await self.engine.sample(prompt, replace(params, model=self.name))

    async def sample_telling(self, prompt: Prompt, params: SamplingParams, tell: Tell) -> Sample:
        return await self.engine.sample_telling(prompt, replace(params, model=self.name), tell)

    async def score(self, prompt: Prompt) -> FloatArray:
        return await self.engine.score(prompt, self.name)

    async def close(self) -> None:
        await self.engine.drop_adapter(self.name)


def share_base(trainer: TorchTrainer, engine: Engine, lora: Lora) -> Callable[[str, Path], Awaitable[AdapterSampler]]:
    """Makes the trainer publish its adapters alone; returns what opens those of a checkpoint (`SharesBase`)."""

    async def open_adapter(name: str, weights: Path) -> AdapterSampler:
        await engine.add_adapter(name, read_adapter(weights, lora))
        return AdapterSampler(engine, name)

    trainer.send = lambda version: engine.publish_adapter(adapter_of(trainer.trainable.items(), lora), version)
    return open_adapter
