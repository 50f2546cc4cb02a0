"""The config of samplers, and the engines that they may have: our own, and vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol

from sojourn.backends.ray.installed_vllm import require_vllm
from sojourn.config.fields import Range
from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from sojourn.backends.torch.backend import Torch


class ActorClass(NamedTuple):
    """The class of an engine's actors, and what they are given besides the backend's keys, the model, its seed, and the
    tokens that end a sample."""

    kind: type
    arguments: tuple[Any, ...] = ()


class SamplerEngine(Protocol):
    """An engine that samplers may have."""

    def check(self, backend: Torch, samplers: Samplers, where: str) -> None:
        """Raises `ConfigError` where the engine is not there, or cannot do what it is told, before anything is
        loaded. `where` is the path of the samplers' table."""
        ...

    def slowdowns(self, samplers: Samplers) -> tuple[str, ...]: ...

    def actor(self, samplers: Samplers) -> ActorClass: ...


@dataclass(frozen=True)
class SojournEngine:
    """Our engine, as backend 'torch' has it."""

    def check(self, backend: Torch, samplers: Samplers, where: str) -> None:
        if samplers.gpus > 1:
            raise ConfigError(
                f"{where}.gpus = {samplers.gpus:g}: our engine works on one GPU, so that others would be "
                "idle: expected at most 1: start more replicas, or divide the model among GPUs by engine = 'vllm'"
            )

    def slowdowns(self, samplers: Samplers) -> tuple[str, ...]:
        return ()

    def actor(self, samplers: Samplers) -> ActorClass:
        from sojourn.backends.ray.sampler_actor import SamplerActor

        return ActorClass(SamplerActor)


@dataclass(frozen=True)
class VLLMEngine:
    """The engine of vLLM, which has processes of its own."""

    def check(self, backend: Torch, samplers: Samplers, where: str) -> None:
        for key in ("prefill_chunk", "compile"):
            value, default = getattr(backend, key), type(backend).__dataclass_fields__[key].default
            if value != default:
                raise ConfigError(
                    f"backend.{key} = {_toml(value)} is for {where}.engine = 'sojourn', and vLLM decides that itself: "
                    f"expected {_toml(default)}: leave it out, or use that engine"
                )
        gpus = samplers.gpus
        if gpus > 1 and gpus != int(gpus):
            raise ConfigError(
                f"{where}.gpus = {gpus:g}: vLLM divides a model among whole GPUs: expected a whole number, or "
                "a part of one GPU"
            )
        require_vllm(gpus, where)

    def slowdowns(self, samplers: Samplers) -> tuple[str, ...]:
        if samplers.gpus:
            return ()
        return (
            "backend 'ray' samples with vLLM on CPUs, where our own engine samples several times as many tokens: set "
            "backend.samplers.engine = 'sojourn', or give the samplers GPUs",
        )

    def actor(self, samplers: Samplers) -> ActorClass:
        from sojourn.backends.ray.vllm_actor import VLLMActor

        return ActorClass(VLLMActor, (samplers.gpus,))


ENGINES: Mapping[str, SamplerEngine] = {"sojourn": SojournEngine(), "vllm": VLLMEngine()}


@dataclass(frozen=True, kw_only=True)
class Samplers:
    """Configures the samplers: how many there are (`replicas`), and which part of a node each reserves: `cpus`, which
    is also the number of its threads, and `gpus`.

    `engine` is what samples: "sojourn", our own, or "vllm", an extra, which works on GPUs where there are `gpus`; it
    divides a model among several of them."""

    engine: Literal["sojourn", "vllm"] = "sojourn"
    replicas: Annotated[int, Range(1)] = 1
    cpus: Annotated[float, Range(0)] = 1.0
    gpus: Annotated[float, Range(0)] = 0.0


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
