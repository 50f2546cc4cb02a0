"""The Ray backend as a component: what the torch backend does in one process, in actors of a Ray cluster."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from sojourn.abilities import FurtherModel
from sojourn.backends.ray.processes import (
    CompleteProcesses,
    EnvWorkers,
    ModelProcesses,
    TrainerRanks,
    check_models,
    pool_of,
)
from sojourn.backends.ray.sampler_engines import ENGINES, Samplers
from sojourn.backends.torch.backend import Torch
from sojourn.config.fields import Range, Text
from sojourn.protocols import EnvFamily, Opened, Renderer, RendererConfig, Sampler, Trainer
from sojourn.timeline import Timeline

if TYPE_CHECKING:
    from pathlib import Path

    from sojourn.backends.ray.cluster import Needs
    from sojourn.backends.ray.further_models import OpeningFurther
    from sojourn.backends.ray.samplers import ReplicatedSampler
    from sojourn.models.spec import Critic, Model

ADDRESS = Text(r"|auto|[^\s\0:]+:[0-9]+", "host:port, auto, or nothing")


@dataclass(frozen=True, kw_only=True)
class Ray(Torch):
    """Samplers, trainer and plays in processes of their own, on one machine or many, which Ray places and watches.

    The keys of backend 'torch' hold for each of its processes; `threads` is by default the number of its processors,
    and `in_flight` "recompute" where vLLM samples.
    `address` is that of a running cluster, host:port, or "auto" for the one of this machine; where it is empty, a
    cluster is started on this machine, and ended with the run. `samplers`, `trainer` and `envs` say how many processes
    there are of each kind, and `models` says it for further models, by their names in `[models]`. Samplers and
    workers that end are started anew, and no episode is lost; where a rank of any trainer ends, the run goes on from
    its last checkpoint. `patience_s` is how long a run waits where no sampler answers. All nodes need the same code,
    the models' files, and the folder of the run.
    """

    address: Annotated[str, ADDRESS] = ""
    samplers: Samplers = field(default_factory=Samplers)
    trainer: TrainerRanks = field(default_factory=TrainerRanks)
    envs: EnvWorkers = field(default_factory=EnvWorkers)
    models: Mapping[str, ModelProcesses] = field(default_factory=dict[str, ModelProcesses])
    patience_s: Annotated[float, Range(above=0, below=math.inf)] = 300.0

    def check(self, model: Model, critic: Critic | None = None) -> None:
        """Raises where Ray or the samplers' engine is not installed, and where this machine has less than a cluster
        that is started on it is to have, too."""
        from sojourn.backends.ray.cluster import imported, require_here

        imported()
        for where, samplers in self._all_samplers().items():
            ENGINES[samplers.engine].check(self, samplers, where)
        super().check(model, critic)
        if not self.address:
            require_here(list(self.needs.values()))

    def slowdowns(self, model: Model) -> tuple[str, ...]:
        """Returns a sentence, too, where more is started on this machine than it has cores for, and where the samplers'
        engine is the slower one."""
        cpus, cores = sum(one.count * one.cpus for one in self.needs.values()), os.cpu_count() or 1
        of_engines = [ENGINES[one.engine].slowdowns(one) for one in self._all_samplers().values()]
        found = tuple(dict.fromkeys(sentence for sentences in of_engines for sentence in sentences))
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

    def check_models(self, models: Mapping[str, FurtherModel]) -> None:
        """Refuses the config of processes that no further model has (`PlacesModels`)."""
        check_models(self.models, models)

    def plan_models(self, models: Mapping[str, FurtherModel]) -> list[str]:
        """Returns what the further models take (`PlacesModels`). Raises where a cluster that is started on this machine
        has no room for them beside the others."""
        from sojourn.backends.ray.cluster import require_here
        from sojourn.backends.ray.plan import further_sizes, listed

        needs = self._further_needs(models)
        if not self.address:
            require_here([*self.needs.values(), *needs])
        found = [f"for further models it also holds {listed(needs)}"] if needs else []
        for name, one in models.items():
            found += further_sizes(self, name, one, self._processes(name).trainer)
        return found

    def reserve_models(self, models: Mapping[str, FurtherModel]) -> None:
        """Reserves the places of further models (`PlacesModels`)."""
        from sojourn.backends.ray.cluster import Cluster

        Cluster.current().reserve(self._further_needs(models))

    def open(
        self,
        model: Model,
        renderer: RendererConfig,
        seed: int,
        timeline: Timeline | None = None,
        critic: Critic | None = None,
    ) -> Opened:
        from sojourn.backends.ray.cluster import Cluster
        from sojourn.backends.ray.opening import Opening, end

        needs = self.needs
        cluster = Cluster.join(self.address, list(needs.values())).hold()
        actors, ranks = list[Any](), None
        try:
            bound = self._bound(model, renderer)
            opening = Opening(cluster=cluster, torch=self._plain, model=model, seed=seed, timeline=timeline)
            actors = opening.start_samplers(self.samplers, needs["samplers"], bound.stops)
            asked = [actor.open.remote() for actor in actors]
            ranks = opening.ranks(self.trainer, needs["trainer"], critic)
            sampler = opening.opened(actors, found := opening.answered(asked), self.patience_s)
            return Opened(opening.trainer(ranks, sampler, found), sampler, bound, sampler.max_context)
        except BaseException:
            end(actors)
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

    async def open_player(
        self, name: str, model: Model, weights: Path | None, seed: int, policy: Model, renderer: Renderer
    ) -> ReplicatedSampler:
        """Opens a frozen model in samplers of its own (`OpensPlayers`)."""
        return await self._further(name, model, seed, policy).player(weights, renderer.stops)

    def open_learner(
        self, name: str, model: Model, seed: int, policy: Model, renderer: Renderer, timeline: Timeline
    ) -> Opened:
        """Opens a model that is trained, too, with samplers and ranks of its own (`OpensPlayers`)."""
        return self._further(name, model, seed, policy, timeline).learner(renderer)

    def open_turn_model(
        self, name: str, model: Model, critic: Critic, weights: Path, seed: int, policy: Model, max_context: int
    ) -> Trainer:
        """Opens a frozen model with its value head in ranks of its own (`OpensTurnModels`)."""
        return self._further(name, model, seed, policy).turn_model(critic, weights, max_context)

    @property
    def shares_base(self) -> bool:
        """Returns whether the samplers' engine has adapters of its own (`SharesBase`)."""
        return self.samplers.engine == "sojourn"

    @property
    def steers(self) -> bool:
        """Returns whether the policy's samplers' engine adds to what it computes (`Steers`)."""
        return self.samplers.engine == "sojourn"

    def share_base(self, model: Model, opened: Opened) -> Callable[[str, Path], Awaitable[Sampler]]:
        """Lets the policy's samplers sample adapters of its checkpoints, too (`SharesBase`)."""
        from sojourn.backends.ray.adapters import adapters_over
        from sojourn.backends.ray.samplers import ReplicatedSampler
        from sojourn.backends.ray.trainer import RayTrainer

        trainer, sampler = opened.trainer, opened.sampler
        assert isinstance(trainer, RayTrainer), "the trainer that this backend opened"
        assert isinstance(sampler, ReplicatedSampler), "the sampler that this backend opened"
        assert model.lora is not None, "a policy that trains adapters"
        trainer.published_adapter = model.lora
        return adapters_over(sampler, model.lora)

    def _further(
        self, name: str, model: Model, seed: int, policy: Model, timeline: Timeline | None = None
    ) -> OpeningFurther:
        """Returns what opens a further model in its places. Raises `ModelError` where it has another vocabulary than
        the policy."""
        from sojourn.backends.ray.cluster import Cluster
        from sojourn.backends.ray.further_models import OpeningFurther
        from sojourn.backends.ray.opening import Opening
        from sojourn.backends.torch import vocabularies

        if (model.name, model.revision) != (policy.name, policy.revision):
            vocabularies.require_same(name, model, *map(self._tokenizer, (model, policy)))
        opening = Opening(
            cluster=Cluster.current(), torch=self._plain, model=model, seed=seed, name=name, timeline=timeline
        )
        return OpeningFurther(opening, self._processes(name), self.patience_s)

    def _further_needs(self, models: Mapping[str, FurtherModel]) -> list[Needs]:
        return [need for name, one in models.items() for need in self._processes(name).needs(name, one)]

    def _all_samplers(self) -> dict[str, Samplers]:
        """Returns the config of all samplers, by the paths of their tables."""
        further = {name: one.samplers for name, one in self.models.items() if one.samplers is not None}
        return {"backend.samplers": self.samplers} | {f"backend.models.{n}.samplers": one for n, one in further.items()}

    def _processes(self, name: str) -> CompleteProcesses:
        """Returns the config of a further model's processes."""
        return self.models.get(pool_of(name), ModelProcesses()).complete(self.samplers, self.trainer)

    @property
    def _plain(self) -> Torch:
        """Returns the keys of backend 'torch'."""
        return Torch(**{name: getattr(self, name) for name in Torch.__dataclass_fields__})

    def _bound(self, model: Model, renderer: RendererConfig) -> Renderer:
        from sojourn.backends.torch.models import loading

        tokenizer = self._tokenizer(model)
        return renderer.bind(tokenizer, loading.template_of(tokenizer))

    def _tokenizer(self, model: Model) -> Any:
        """Returns the tokenizer of a model, once its files are here."""
        from sojourn.backends.torch.models import loading

        source = loading.resolve(model.name, model.revision)
        if source.kind is not loading.Kind.TINY:
            loading.ensure_folder(source)
        return loading.tokenizer(model.name, model.revision)
