"""Starts and opens the processes of a model: its samplers, and the ranks of its trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sojourn.backends.ray.cluster import Cluster, Needs, answers, imported, require_same_code
from sojourn.backends.ray.processes import ModelRanks
from sojourn.backends.ray.sampler_actor import OpenedSampler
from sojourn.backends.ray.sampler_engines import ENGINES, Samplers
from sojourn.backends.ray.samplers import ReplicatedSampler
from sojourn.models.spec import Critic, Model
from sojourn.timeline import Timeline

if TYPE_CHECKING:
    from sojourn.backends.ray.ranks import Ranks
    from sojourn.backends.ray.stored_weights import StoredWeights
    from sojourn.backends.ray.trainer import RayTrainer
    from sojourn.backends.torch.backend import Torch


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Opens a model in processes of a cluster. `name` is that of a further model, empty for the policy; `torch` has the
    keys that hold in each process."""

    cluster: Cluster
    torch: Torch
    model: Model
    seed: int
    name: str = ""
    timeline: Timeline | None = None

    def start_samplers(self, config: Samplers, needs: Needs, stops: Sequence[int]) -> list[Any]:
        """Starts the actors of samplers. Those of the policy have numbered places, those of a further model any free
        place of their model, as the snapshots of a pool, which share theirs, come and go."""
        actor = ENGINES[config.engine].actor(config)
        given = (self.torch, self.model, self.seed, tuple(stops), *actor.arguments)
        numbers = [None if self.name else number for number in range(config.replicas)]
        return [self.cluster.actor(actor.kind, needs, number, *given) for number in numbers]

    def answered(self, asked: Sequence[Any]) -> list[OpenedSampler]:
        """Waits until samplers, which were asked to, have opened their engines, and returns what they say."""
        return list(answers({self._what(n): one for n, one in enumerate(asked)}).values())

    def opened(
        self,
        actors: Sequence[Any],
        found: Sequence[OpenedSampler],
        patience_s: float,
        weights: StoredWeights | None = None,
    ) -> ReplicatedSampler:
        """Returns the sampler of actors that have opened their engines, and loaded `weights`, if given."""
        require_same_code({self._what(n): one.code for n, one in enumerate(found)})
        return ReplicatedSampler(
            actors,
            self.cluster,
            max_context=min(one.max_context for one in found),
            timeline=self.timeline,
            patience_s=patience_s,
            weights=weights,
        )

    def trainer(self, ranks: Ranks, sampler: ReplicatedSampler, found: Sequence[OpenedSampler]) -> RayTrainer:
        """Returns the trainer in ranks, which publishes to a sampler: adapters by themselves, where all of its engines
        are to be given them so."""
        from sojourn.backends.ray.trainer import RayTrainer

        trainer = RayTrainer(ranks, sampler.publish, self.timeline)
        if all(one.unmerged is not None for one in found):
            trainer.published_adapter = self.model.lora
        return trainer

    def _what(self, number: int) -> str:
        return f"sampler {number} of models.{self.name}" if self.name else f"sampler {number}"

    def ranks(self, config: ModelRanks, needs: Needs, critic: Critic | None) -> Ranks:
        """Starts the ranks of the model's trainer, and opens it there; where that fails, none is left."""
        from sojourn.backends.ray.ranks import Ranks
        from sojourn.backends.ray.trainer_rank import TrainerRank

        one_by_one = {"restarts": 0, "concurrency": 1}
        numbers = [None if self.name else number for number in range(config.ranks)]
        started = [self.cluster.actor(TrainerRank, needs, n, self.torch.threads, **one_by_one) for n in numbers]
        ranks = Ranks(started, self.name)
        ranks.open(
            self.torch,
            self.model,
            self.seed,
            critic,
            shard=config.shard,
            context_parallel=config.context_parallel,
        )
        return ranks


def end(actors: Sequence[Any]) -> None:
    """Ends actors, as where not all of them could be opened."""
    for actor in actors:
        imported().kill(actor)
