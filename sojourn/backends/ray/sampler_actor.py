"""The actor that samples: our engine in a process of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from sojourn.backends.ray.cluster import code_digest, prepare_actor
from sojourn.backends.ray.reports import Report
from sojourn.types import FloatArray, Prompt, Sample, SamplingParams

if TYPE_CHECKING:
    from sojourn.backends.ray.packed_adapters import NamedAdapter, PackedAdapter
    from sojourn.backends.ray.packed_weights import PackedWeights
    from sojourn.backends.ray.stored_weights import StoredWeights
    from sojourn.backends.torch.backend import Torch
    from sojourn.backends.torch.sampler.engine import Engine, EngineStats
    from sojourn.models.spec import Lora, Model


class StaleWeightsError(Exception):
    """A replica has older weights than a request asks for: it was started anew."""


def require_version(own: int | None, asked: int) -> None:
    """Raises where the weights of a replica, which may have none yet, are older than those that are asked for."""
    if own is None or own < asked:
        has = "no weights" if own is None else f"weights of version {own}"
        raise StaleWeightsError(f"it has {has}, but {asked} is asked for")


class OpenedSampler(NamedTuple):
    """Holds what a replica says of itself; `unmerged` are the adapters that it is to be given by themselves."""

    max_context: int
    code: str
    unmerged: Lora | None = None


class SamplerReport(NamedTuple):
    """Holds what a replica says of its engine and of its process."""

    stats: EngineStats
    process: Report


class SamplerActor:
    """Samples with the engine of the torch backend, which `open` loads with the weights that a run begins with.

    Every request names the version of weights that it needs at least, so that a replica that died and was started anew
    answers none by the weights that it was opened with.
    """

    def __init__(self, backend: Torch, model: Model, seed: int, stops: tuple[int, ...]) -> None:
        self._backend, self._model, self._seed, self._stops = backend, model, seed, stops
        self._engine: Engine | None = None
        self._adapters: dict[str, asyncio.Task[None]] = {}

    async def open(self) -> OpenedSampler:
        """Loads the model, unless that is done."""
        if self._engine is None:
            prepare_actor(self._backend.threads)
            loaded = self._backend.load(self._model, self._seed)
            self._engine = self._backend.open_sampler(loaded, self._model, self._stops)
        return OpenedSampler(self._engine.max_context, code_digest(), self._backend.unmerged(self._model))

    async def sample(
        self, prompt: Prompt, params: SamplingParams, version: int, adapter: NamedAdapter | None = None
    ) -> Sample:
        engine = self._of(version)
        await self._add(engine, adapter)
        return await engine.sample(prompt, params)

    async def score(self, prompt: Prompt, version: int, adapter: NamedAdapter | None = None) -> FloatArray:
        engine = self._of(version)
        await self._add(engine, adapter)
        return await engine.score(prompt, *([] if adapter is None else [adapter.name]))

    async def load(self, weights: PackedWeights | StoredWeights | PackedAdapter, version: int) -> None:
        """Replaces the weights between two steps of the engine, or the policy's adapter over them."""
        from sojourn.backends.ray.packed_adapters import PackedAdapter
        from sojourn.backends.ray.stored_weights import StoredWeights
        from sojourn.backends.torch.models.adapters import read_adapter

        await self.open()
        engine, lora = self._of(0), self._backend.unmerged(self._model)
        if isinstance(weights, PackedAdapter):
            await engine.publish_adapter(weights.unpack(), version)
        elif isinstance(weights, StoredWeights) and lora is not None:
            await engine.publish_adapter(read_adapter(weights.folder, lora), version)
        else:
            await engine.publish(weights.unpack(), version)

    async def drop_adapter(self, name: str) -> None:
        """Drops an adapter, if it is there, once no request names it any more."""
        if (added := self._adapters.get(name)) is not None:
            await asyncio.shield(added)  # as requests wait: those that came before have asked the engine by then
            await self._of(0).drop_adapter(name)
            del self._adapters[name]

    async def forget(self) -> None:
        await self._of(0).forget()

    async def stats(self) -> EngineStats:
        return self._of(0).stats()

    async def report(self) -> SamplerReport | None:
        """Returns nothing where there is no engine, as the process was started anew."""
        from sojourn.backends.torch.place import device_memory, place_of

        if (engine := self._engine) is None:
            return None
        facts = {**place_of(engine.device), "engine": "sojourn"}
        return SamplerReport(engine.stats(), Report.here(facts, device_memory(engine.device)))

    async def _add(self, engine: Engine, adapter: NamedAdapter | None) -> None:
        """Adds an adapter that a request names, unless it is there."""
        if adapter is None:
            return
        if adapter.name not in self._adapters:
            self._adapters[adapter.name] = asyncio.ensure_future(_fetch(engine, adapter))
        try:
            await asyncio.shield(self._adapters[adapter.name])
        except Exception:
            self._adapters.pop(adapter.name, None)
            raise

    def _of(self, version: int) -> Engine:
        require_version(None if self._engine is None else self._engine.version, version)
        assert self._engine is not None, "it has a version"
        return self._engine


async def _fetch(engine: Engine, adapter: NamedAdapter) -> None:
    packed: PackedAdapter = await adapter.packed
    await engine.add_adapter(adapter.name, packed.unpack())
