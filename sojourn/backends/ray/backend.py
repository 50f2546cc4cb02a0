"""The Ray backend as a component: what the torch backend does in one process, in actors of a Ray cluster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from sojourn.backends.torch.backend import Torch, compute_dtype
from sojourn.config.fields import Range, Text
from sojourn.protocols import Opened, RendererConfig
from sojourn.timeline import Timeline

if TYPE_CHECKING:
    from sojourn.backends.ray.cluster import Needs
    from sojourn.models.spec import Critic, Model

ADDRESS = Text(r"|auto|[^\s\0:]+:[0-9]+", "host:port, auto, or nothing")


@dataclass(frozen=True, kw_only=True)
class Samplers:
    """How many samplers there are (`replicas`), and which part of a node each reserves: `cpus`, which is also the
    number of its threads, and `gpus`."""

    replicas: Annotated[int, Range(1)] = 1
    cpus: Annotated[float, Range(0)] = 1.0
    gpus: Annotated[float, Range(0)] = 0.0


@dataclass(frozen=True, kw_only=True)
class Ray(Torch):
    """Samplers in processes of their own, on one machine or many, which Ray places, watches and starts anew.

    The keys of backend 'torch' hold for each of its parts. `address` is that of a running cluster, host:port, or "auto"
    for the one of this machine; where it is empty, a cluster is started on this machine, and ended with the run.
    `samplers` says how many samplers there are. `patience_s` is how long a run goes on while none of them answers.
    """

    address: Annotated[str, ADDRESS] = ""
    samplers: Samplers = field(default_factory=Samplers)
    patience_s: Annotated[float, Range(above=0, below=math.inf)] = 300.0

    def check(self, model: Model, critic: Critic | None = None) -> None:
        """Raises where Ray is not installed, too."""
        from sojourn.backends.ray.cluster import imported

        imported()
        super().check(model, critic)

    @property
    def needs(self) -> list[Needs]:
        """Returns what is reserved for each part."""
        from sojourn.backends.ray.cluster import Needs

        own = self.samplers
        return [Needs(what="samplers", count=own.replicas, cpus=own.cpus, gpus=own.gpus)]

    def open(
        self,
        model: Model,
        renderer: RendererConfig,
        seed: int,
        timeline: Timeline | None = None,
        critic: Critic | None = None,
    ) -> Opened:
        from sojourn.backends.ray.cluster import Cluster, imported, require_same_code
        from sojourn.backends.ray.packed_weights import pack
        from sojourn.backends.ray.sampler_actor import SamplerActor
        from sojourn.backends.ray.samplers import ReplicatedSampler

        ray = imported()
        cluster = Cluster.join(self.address, self.needs).hold()
        try:
            loaded = self.load(model, seed)
            bound = renderer.bind(loaded.tokenizer, loaded.template)
            context = min(self.max_context, loaded.max_context)
            [needs] = self.needs
            given = (self._plain(), model, seed, tuple(bound.stops), self.samplers.cpus)
            actors = [cluster.actor(SamplerActor, needs, n, *given) for n in range(needs.count)]
            said = ray.get([actor.open.remote() for actor in actors])
            require_same_code({f"sampler {n}": one.code for n, one in enumerate(said)})
            sampler = ReplicatedSampler(
                actors, cluster, max_context=context, timeline=timeline, patience_s=self.patience_s
            )
            dtype = compute_dtype(model.dtype, next(loaded.model.parameters()).device)

            async def send(weights: Iterator[tuple[str, Any]], version: int) -> None:
                await sampler.publish(ray.put(pack(weights, dtype)), version)

            trainer = self.trainer(loaded, model, seed, send, timeline, critic)
            return Opened(trainer, sampler, bound, context)
        finally:
            cluster.release()

    def _plain(self) -> Torch:
        """Returns the keys of each part."""
        return Torch(**{name: getattr(self, name) for name in Torch.__dataclass_fields__})
