"""Adapters of an engine: published, each as a sampler of its own, and those that a model was trained with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sojourn.abilities import Tell
from sojourn.backends.torch.models import export
from sojourn.backends.torch.models.adapters import adapter_of, read_adapter
from sojourn.backends.torch.sampler.engine import Engine
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.models.spec import Lora, Model
from sojourn.types import FloatArray, Prompt, Sample, SamplingParams

if TYPE_CHECKING:
    from sojourn.backends.torch.models.loading import Loaded


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


def publish_adapters(trainer: TorchTrainer, engine: Engine, lora: Lora) -> None:
    """Makes the trainer publish its adapters alone, so that the engine's weights stay."""
    trainer.send = lambda version: engine.publish_adapter(adapter_of(trainer.trainable.items(), lora), version)


def share_base(trainer: TorchTrainer, engine: Engine, lora: Lora) -> Callable[[str, Path], Awaitable[AdapterSampler]]:
    """Makes the trainer publish its adapters alone; returns what opens those of a checkpoint (`SharesBase`)."""

    async def open_adapter(name: str, weights: Path) -> AdapterSampler:
        await engine.add_adapter(name, read_adapter(weights, lora))
        return AdapterSampler(engine, name)

    publish_adapters(trainer, engine, lora)
    return open_adapter


def open_trained(
    open_engine: Callable[[Loaded], Engine], loaded: Loaded, model: Model, weights: Path | None, unmerged: Lora | None
) -> Engine:
    """Opens an engine on a loaded model or, as version 1, on the weights of a checkpoint's folder; adapters are merged
    in, but for those that are to be `unmerged`."""
    if weights is None:
        return open_engine(loaded)
    if unmerged is None:
        trained = export.with_weights(loaded.model, model.lora, weights)
        loaded = replace(loaded, model=trained if model.lora is None else trained.merge_and_unload())
    engine = open_engine(loaded)
    if unmerged is not None:
        engine.begin_with(read_adapter(weights, unmerged))
    engine.version = 1
    return engine
