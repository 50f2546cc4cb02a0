"""The Ray backend as a component: what the torch backend does in one process, in actors of a Ray cluster."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from sojourn.backends.ray.sampler_engines import ENGINES, Samplers
from sojourn.backends.torch.backend import Torch
from sojourn.config.fields import Range, Text
from sojourn.errors import ConfigError
from sojourn.protocols import EnvFamily, Opened, Renderer, RendererConfig, Trainer
from sojourn.timeline import Timeline

if TYPE_CHECKING:
    from pathlib import Path

    from sojourn.backends.ray.cluster import Cluster, Needs
    from sojourn.backends.ray.ranks import Ranks
    from sojourn.models.spec import Critic, Model

ADDRESS = Text(r"|auto|[^\s\0:]+:[0-9]+", "host:port, auto, or nothing")


@dataclass(frozen=True, kw_only=True)
class TrainerRanks:
    """Configures the trainer: how many processes train the model together (`ranks`), and which part of a node each
    reserves: `cpus`, which is also the number of its threads, and `gpus`, at most one. They divide each batch.
    With `shard` each of them also holds only its part of the weights, gradients and moments (FSDP2), which saves memory
    and costs time. `context_parallel` of them, which must divide `ranks`, compute each sequence together, for contexts
    whose activations do not fit into one; `token_budget` and `activation_gb` are those of each. Where one of them ends,
    the run goes on from its last checkpoint by itself, up to `restarts` times."""

    ranks: Annotated[int, Range(1)] = 1
    cpus: Annotated[float, Range(0)] = 1.0
    gpus: Annotated[float, Range(0, 1)] = 0.0
    shard: bool = False
    context_parallel: Annotated[int, Range(1)] = 1
    restarts: Annotated[int, Range(0)] = 3

    def __post_init__(self) -> None:
        if self.ranks % self.context_parallel:
            raise ConfigError(
                f"backend.trainer.context_parallel = {self.context_parallel} does not divide backend.trainer.ranks = "
                f"{self.ranks}: expected a divisor, as so many ranks share each sequence"
            )


@dataclass(frozen=True, kw_only=True)
class EnvWorkers:
    """Configures how many processes hold plays of the world (`workers`; 0: the driver does), and which part of a node
    each reserves: `cpus` and `gpus`. Each holds as many plays as the world says that it has room for."""

    workers: Annotated[int, Range(0)] = 0
    cpus: Annotated[float, Range(0)] = 1.0
    gpus: Annotated[float, Range(0)] = 0.0


@dataclass(frozen=True, kw_only=True)
class Ray(Torch):
    """Samplers, trainer and plays in processes of their own, on one machine or many, which Ray places and watches.

    The keys of backend 'torch' hold for each of its processes; `threads` is by default the number of its processors,
    and `in_flight` "recompute" where vLLM samples.
    `address` is that of a running cluster, host:port, or "auto" for the one of this machine; where it is empty, a
    cluster is started on this machine, and ended with the run. `samplers`, `trainer` and `envs` say how many processes
    there are of each kind. Samplers and workers that end are started anew, and no episode is lost; where a rank of the
    trainer ends, the run goes on from its last checkpoint. `patience_s` is how long a run waits
    where no sampler answers. All nodes need the same code, the model's files, and the folder of the run.
    """

    address: Annotated[str, ADDRESS] = ""
    samplers: Samplers = field(default_factory=Samplers)
    trainer: TrainerRanks = field(default_factory=TrainerRanks)
    envs: EnvWorkers = field(default_factory=EnvWorkers)
    patience_s: Annotated[float, Range(above=0, below=math.inf)] = 300.0

    opens_players = False  # yet
    open_turn_model = None  # type: ignore[assignment]  # yet

    def check(self, model: Model, critic: Critic | None = None) -> None:
        """Raises where Ray or the samplers' engine is not installed, too."""
        from sojourn.backends.ray.cluster import imported

        imported()
        ENGINES[self.samplers.engine].check(self, self.samplers)
        super().check(model, critic)

    def slowdowns(self, model: Model) -> tuple[str, ...]:
        """Returns a sentence, too, where more is started on this machine than it has cores for, and where the samplers'
        engine is the slower one."""
        cpus, cores = sum(one.count * one.cpus for one in self.needs.values()), os.cpu_count() or 1
        found = ENGINES[self.samplers.engine].slowdowns(self.samplers)
        if not self.address and cpus > cores:
            found += (
                f"backend 'ray' starts processes that are to have {cpus:g} processors on this machine, which has "
                f"{cores}: each is slower than it could be: lower the counts, or give backend.address a cluster",
            )
        return (*found, *super().slowdowns(model))

    def plan(self, model: Model, critic: Critic | None = None) -> list[str]:
        """Returns what the run takes (`HasPlan`)."""
        from sojourn.backends.ray.plan import places, sizes

        ranks = {name: getattr(self.trainer, name) for name in ("ranks", "shard", "context_parallel")}
        taken = sizes(self, model, critic, replicas=self.samplers.replicas, **ranks)
        return [places(self.needs, self.address), *taken]

    @property
    def needs(self) -> dict[str, Needs]:
        """Returns what is reserved for each kind of process."""
        from sojourn.backends.ray.cluster import Needs

        samplers, trainer, envs = self.samplers, self.trainer, self.envs
        return {
            "samplers": Needs(what="samplers", count=samplers.replicas, cpus=samplers.cpus, gpus=samplers.gpus),
            "trainer": Needs(what="trainer ranks", count=trainer.ranks, cpus=trainer.cpus, gpus=trainer.gpus),
            "envs": Needs(what="environment workers", count=envs.workers, cpus=envs.cpus, gpus=envs.gpus),
        }

    def open(
        self,
        model: Model,
        renderer: RendererConfig,
        seed: int,
        timeline: Timeline | None = None,
        critic: Critic | None = None,
    ) -> Opened:
        from sojourn.backends.ray.cluster import Cluster, answers, require_same_code
        from sojourn.backends.ray.samplers import ReplicatedSampler
        from sojourn.backends.ray.trainer import RayTrainer

        cluster = Cluster.join(self.address, list(self.needs.values())).hold()
        ranks = None
        try:
            bound = self._bound(model, renderer)
            actors = self._samplers(cluster, model, seed, tuple(bound.stops))
            opening = [actor.open.remote() for actor in actors]
            ranks = self._ranks(cluster, model, seed, critic)
            said = answers({f"sampler {n}": opened for n, opened in enumerate(opening)})
            require_same_code({name: one.code for name, one in said.items()})
            context = min(one.max_context for one in said.values())
            sampler = ReplicatedSampler(
                actors, cluster, max_context=context, timeline=timeline, patience_s=self.patience_s
            )
            return Opened(RayTrainer(ranks, sampler.publish, timeline), sampler, bound, context)
        except BaseException:
            if ranks is not None:
                ranks.close()
            raise
        finally:
            cluster.release()

    @property
    def restarts(self) -> int:
        """Returns how often a run goes on by itself where a rank of its trainer ends (`Restarts`)."""
        return self.trainer.restarts

    def place(self, family: EnvFamily) -> EnvFamily:
        """Returns the family whose plays are in workers (`PlacesWorlds`)."""
        from sojourn.backends.ray.cluster import Cluster
        from sojourn.backends.ray.env_family import RemoteFamily
        from sojourn.backends.ray.env_worker import EnvWorker

        if not self.envs.workers:
            return family
        start = partial(Cluster.current().actor, EnvWorker, self.needs["envs"])
        return RemoteFamily(family, self.envs.workers, start)

    def open_model(
        self, name: str, model: Model, weights: Path | None, seed: int, policy: Model, trainer: Trainer
    ) -> None:
        """Opens a frozen model in the trainer's ranks."""
        from sojourn.backends.ray.trainer import RayTrainer

        assert isinstance(trainer, RayTrainer), "the trainer that this backend opened"
        trainer.open_model(name, model, weights, seed, policy)

    @property
    def _plain(self) -> Torch:
        """Returns the keys of backend 'torch'."""
        return Torch(**{name: getattr(self, name) for name in Torch.__dataclass_fields__})

    def _bound(self, model: Model, renderer: RendererConfig) -> Renderer:
        """Binds the renderer to the tokenizer, once the model's files are here."""
        from sojourn.backends.torch.models import loading

        source = loading.resolve(model.name, model.revision)
        if source.kind is not loading.Kind.TINY:
            loading.ensure_folder(source)
        tokenizer: Any = loading.tokenizer(model.name, model.revision)
        return renderer.bind(tokenizer, loading.template_of(tokenizer))

    def _samplers(self, cluster: Cluster, model: Model, seed: int, stops: tuple[int, ...]) -> list[Any]:
        needs, actor = self.needs["samplers"], ENGINES[self.samplers.engine].actor(self.samplers)
        given = (self._plain, model, seed, stops, *actor.arguments)
        return [cluster.actor(actor.kind, needs, n, *given) for n in range(needs.count)]

    def _ranks(self, cluster: Cluster, model: Model, seed: int, critic: Critic | None) -> Ranks:
        from sojourn.backends.ray.ranks import Ranks
        from sojourn.backends.ray.trainer_rank import TrainerRank

        needs = self.needs["trainer"]
        one_by_one = {"restarts": 0, "concurrency": 1}
        ranks = Ranks(
            [cluster.actor(TrainerRank, needs, n, self.threads, **one_by_one) for n in range(self.trainer.ranks)]
        )
        shard, context_parallel = self.trainer.shard, self.trainer.context_parallel
        ranks.open(self._plain, model, seed, critic, shard=shard, context_parallel=context_parallel)
        return ranks
