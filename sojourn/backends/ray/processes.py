"""The config of the processes of a run on Ray, besides its samplers: trainer ranks, environment workers, and those of
further models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from sojourn.abilities import FurtherModel
from sojourn.backends.ray.cluster import Needs
from sojourn.backends.ray.sampler_engines import Samplers
from sojourn.config.fields import Range
from sojourn.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ModelRanks:
    """Configures a trainer: how many processes train the model together (`ranks`), and which part of a node each
    reserves: `cpus`, which is also the number of its threads, and `gpus`, at most one. They divide each batch.
    With `shard` each of them also holds only its part of the weights, gradients and moments (FSDP2), which saves memory
    and costs time. `context_parallel` of them, which must divide `ranks`, compute each sequence together, for contexts
    whose activations do not fit into one; `token_budget` and `activation_gb` are those of each."""

    ranks: Annotated[int, Range(1)] = 1
    cpus: Annotated[float, Range(0)] = 1.0
    gpus: Annotated[float, Range(0, 1)] = 0.0
    shard: bool = False
    context_parallel: Annotated[int, Range(1)] = 1

    def __post_init__(self) -> None:
        if self.ranks % self.context_parallel:
            raise ValueError(
                f"context_parallel = {self.context_parallel} does not divide ranks = {self.ranks}: expected a divisor, "
                "as so many ranks share each sequence"
            )


@dataclass(frozen=True, kw_only=True)
class TrainerRanks(ModelRanks):
    """Configures the policy's trainer. Where a rank of any trainer ends, the run goes on from its last checkpoint by
    itself, up to `restarts` times."""

    restarts: Annotated[int, Range(0)] = 3


@dataclass(frozen=True, kw_only=True)
class EnvWorkers:
    """Configures how many processes hold plays of the world (`workers`; 0: the driver does), and which part of a node
    each reserves: `cpus` and `gpus`. Each holds as many plays as the world says that it has room for."""

    workers: Annotated[int, Range(0)] = 0
    cpus: Annotated[float, Range(0)] = 1.0
    gpus: Annotated[float, Range(0)] = 0.0


@dataclass(frozen=True, kw_only=True)
class ModelProcesses:
    """Configures the processes of one of the further models: its `samplers`, where it takes seats or is asked for text
    (by default, one like those of the policy), and its `trainer`, where it learns, or is read as a reward model (by
    default, as many ranks as the policy has, which are like those). Each snapshot of a pool has samplers of its own
    while plays may meet it."""

    samplers: Samplers | None = None
    trainer: ModelRanks | None = None

    def complete(self, samplers: Samplers, trainer: ModelRanks) -> CompleteProcesses:
        """Returns both, with those of the policy, which are given, in place of what is left out."""
        return CompleteProcesses(self.samplers or replace(samplers, replicas=1), self.trainer or trainer)


class CompleteProcesses(NamedTuple):
    """Holds the config of the samplers and of the trainer of a further model."""

    samplers: Samplers
    trainer: ModelRanks

    def needs(self, name: str, model: FurtherModel) -> list[Needs]:
        """Returns what is reserved for a further model: for all of its samplers, and all ranks of its trainers."""
        samplers, trainer = self
        count = samplers.replicas * model.samplers
        needs = [
            Needs(what=samplers_of(name), count=count, cpus=samplers.cpus, gpus=samplers.gpus),
            Needs(what=ranks_of(name), count=trainer.ranks * model.trainers, cpus=trainer.cpus, gpus=trainer.gpus),
        ]
        return [one for one in needs if one.count]


def samplers_of(name: str) -> str:
    """Returns what the places of a further model's samplers are called: a pool's snapshots share theirs."""
    return f"samplers of models.{pool_of(name)}"


def ranks_of(name: str) -> str:
    return f"trainer ranks of models.{name}"


def pool_of(name: str) -> str:
    """Returns the name in `[models]` of a further model, which may be a snapshot, such as past@20."""
    return name.partition("@")[0]


def check_models(configured: Mapping[str, ModelProcesses], models: Mapping[str, FurtherModel]) -> None:
    """Raises `ConfigError` for the config of processes that no further model has."""
    for name, processes in configured.items():
        if name not in models:
            known = ", ".join(sorted(models)) or "none"
            raise ConfigError(
                f"backend.models.{name}: the further models whose weights are here are {known}: name one of them, or "
                "leave the table out"
            )
        if processes.samplers is not None and not models[name].samplers:
            raise ConfigError(
                f"backend.models.{name}.samplers: models.{name} has no samplers, as nothing samples it, or those of "
                "the policy sample its adapters: leave samplers out"
            )
        if processes.trainer is not None and not models[name].trainers:
            raise ConfigError(
                f"backend.models.{name}.trainer: models.{name} has no trainer, as it does not learn, and is no reward "
                "model: leave trainer out"
            )
