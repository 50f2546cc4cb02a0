"""The schema of a recipe: frozen dataclasses, whose fields are the keys of a config."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from sojourn.abilities import asked_for_text, sub_agent_models, value_models, with_base_agents
from sojourn.agents.plain import Plain
from sojourn.batch.weigh import Aggregate
from sojourn.composite import with_bases
from sojourn.config.fields import FOLDER, NONBLANK, TEMPERATURE, Kind, Range, Text
from sojourn.config.registry import build
from sojourn.config.unused import refuse_unused
from sojourn.credit.grpo import GRPO
from sojourn.curricula.cycle import Cycle
from sojourn.live.gate import Gate
from sojourn.models.spec import Critic, FrozenModel, Model, Sampling, ServedModel
from sojourn.optim import Optim
from sojourn.protocols import (
    Agent,
    Backend,
    CurriculumConfig,
    EnvFamily,
    Estimator,
    Filter,
    Loss,
    RendererConfig,
    Reward,
    SourceConfig,
    Stream,
)
from sojourn.record.metrics import SinkConfig
from sojourn.render.auto import Auto
from sojourn.rewards.native import Native
from sojourn.rollout.runner import Rollout
from sojourn.sources.context import SourceContext
from sojourn.sources.slots import Slots
from sojourn.train.early_stop import EarlyStop
from sojourn.train.repeats import Repeat
from sojourn.train.seating import POLICY, Seats
from sojourn.train.steered import SteeredBy
from sojourn.types import SamplingParams

CRITIC = "critic"  # the run's own, where a reward reads a model with a value head
NAME = Text(r"[A-Za-z0-9._-]{1,64}", "1 to 64 of the characters a-z, A-Z, 0-9, '-', '_' and '.'")
STAGE_NAME = Text(
    rf"(?!(before|best|last)$|evaluation){NAME.pattern}",
    f"{NAME.description}, neither 'before', 'best' nor 'last', as weights are called, nor beginning with 'evaluation'",
)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Configures the evaluations: each plays the first `tasks` tasks of the split (all, where it has fewer), each of
    them `samples` times, which is also the greatest k of pass@k.

    A run is evaluated before, between and after its stages, and inside a stage after each `every` steps (0: never).
    `temperature = 0` decodes greedily. `temperature`, `top_p`, `top_k` and `min_p` replace those of `[sampling]`;
    evaluations take the other keys of `[sampling]`, such as `max_tokens`, as they are. Without `search`, an agent that
    searches plays them as its base does, so that they tell what the policy itself has learned. Worlds that can measure
    the policy as a whole do so, too, where the agent samples among the actions that they list, and does not search.
    `seats` says which models take the seats in evaluations, where that is not as `[seats]` says for training. Success
    and reward are the policy's; those of other models that learn are told beside them. `steering` adds a vector to the
    policy's hidden states while it samples in evaluations; training never does, as the trainer adds none.
    """

    tasks: Annotated[int, Range(1)] = 64
    samples: Annotated[int, Range(1)] = 1
    split: Annotated[str, NONBLANK] = "test"
    temperature: Annotated[float, TEMPERATURE] = 1.0
    top_p: Annotated[float, Range(above=0, max=1)] = 1.0
    top_k: Annotated[int, Range(0)] = 0
    min_p: Annotated[float, Range(0, 1)] = 0.0
    every: Annotated[int, Range(0)] = 0
    search: bool = True
    seats: Seats | None = None
    steering: SteeredBy | None = None

    def params(self, sampling: Sampling) -> SamplingParams:
        """Returns the sampling parameters of evaluations in a run with these of training."""
        return replace(
            sampling.params(),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            steering=None if self.steering is None else self.steering.steering(),
        )


@dataclass(frozen=True, kw_only=True)
class Record:
    """Configures what a run records, and where. `checkpoint_every` counts steps (0: a checkpoint only at the end of a
    stage). The last `keep` checkpoints of a stage stay until it ends; the weights that it ended with stay always, and
    so do the checkpoints after each `keep_every` steps of a stage (0: none), optimiser included, to look at how a
    policy became what it is, or to go back.
    With `keep_best`, so do those that did best of all evaluations after training (by success, then by reward; of equal
    ones the last at the end of a stage, else the first), for which there is a checkpoint then: `RUN` names these, as
    `RUN@best` does, and `RUN@last` the weights after the last step.
    With `keep_optimizer`, the checkpoint at the end of the run has the optimiser's moments too, with which a finished
    run can be given more steps; without, it has the weights alone, about a third of the size.

    `drift_groups` groups of each step are scored by the weights that the stage began with, and the KL divergence from
    them of the policy that sampled is recorded as the metric `drift` (0: not measured). The metric `kl` is the KL
    divergence between the policy that sampled and the one that trained: 0 on-policy. `tags` help to find a run among
    others.

    Every token is recorded with its weight in the step, before minibatches scale it, and with the values of the stage's
    streams; `streams` names further streams, such as entropy, that are recorded but not trained on.
    """

    folder: Annotated[str, FOLDER] = "runs"
    checkpoint_every: Annotated[int, Range(0)] = 10
    keep: Annotated[int, Range(1)] = 2
    keep_every: Annotated[int, Range(0)] = 0
    keep_best: bool = True
    keep_optimizer: bool = True
    drift_groups: Annotated[int, Range(0)] = 0
    tags: tuple[Annotated[str, NONBLANK], ...] = ()
    streams: Annotated[tuple[Stream, ...], Kind("stream")] = ()
    sinks: Annotated[tuple[SinkConfig, ...], Kind("sink")] = ()

    def due(self, step: int) -> bool:
        """Returns whether there is a checkpoint after so many steps of a stage."""
        return bool(self.checkpoint_every) and step % self.checkpoint_every == 0

    def stays(self, step: int) -> bool:
        """Returns whether the checkpoint after so many steps of a stage stays always."""
        return bool(self.keep_every) and step % self.keep_every == 0


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """Says how a stage trains a model of `[models]` that sits beside the policy, on the trajectories that it took
    itself. Its `estimator`, `losses`, `streams`, `aggregate`, `minibatches` and `optim` are, where they are left out,
    as the stage has them for the policy; the model has an optimiser and states of all components of its own in any
    case."""

    estimator: Annotated[Estimator | None, Kind("estimator")] = None
    losses: Annotated[tuple[Loss, ...], Kind("loss")] | None = None
    streams: Annotated[tuple[Stream, ...], Kind("stream")] | None = None
    aggregate: Aggregate | None = None
    minibatches: Annotated[int | None, Range(1, 1024)] = None
    optim: Optim | None = None

    def __post_init__(self) -> None:
        if self.aggregate is not None:
            _check_aggregate(self.aggregate)


def _check_aggregate(aggregate: Aggregate) -> None:
    if aggregate.by != "constant":
        refuse_unused(aggregate, ["length"], f'of aggregate with by = "{aggregate.by}"')


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Configures one stage of training: where its groups come from, which estimator assigns their credit, and which
    losses are minimised.

    A stage with `trains = false` plays and records its groups, and leaves the weights as they are: a later stage trains
    on what it collected, by groups = {name = "earlier"}. It has no losses, not even those that all stages share, and no
    evaluation of its own. Its streams that learn are trained, so that it can train a value model alone, on recorded
    groups as well. With `restart`, a stage begins with the weights that the run began with, not with those of the stage
    before. `learners` are the models beside the policy that the stage trains as well, by their names in `[models]`.
    """

    name: Annotated[str, STAGE_NAME] = "train"
    steps: Annotated[int, Range(0)] = 10
    groups: Annotated[SourceConfig[SourceContext], Kind("groups")] = field(default_factory=Slots)
    filters: Annotated[tuple[Filter, ...], Kind("filter")] = ()
    estimator: Annotated[Estimator, Kind("estimator")] = field(default_factory=GRPO)
    losses: Annotated[tuple[Loss, ...], Kind("loss")] = ()
    streams: Annotated[tuple[Stream, ...], Kind("stream")] = ()
    aggregate: Aggregate = field(default_factory=Aggregate)
    minibatches: Annotated[int, Range(1, 1024)] = 1
    optim: Optim = field(default_factory=Optim)
    early_stop: EarlyStop = field(default_factory=EarlyStop)
    trains: bool = True
    restart: bool = False
    learners: Mapping[str, LearnerConfig] = field(default_factory=dict[str, LearnerConfig])

    def __post_init__(self) -> None:
        _check_aggregate(self.aggregate)
        if not self.trains:
            self._check_collects()
        elif not self.losses:
            raise ValueError("no losses: give at least one, such as losses = [{name = 'ppo'}]")

    def of_models(self) -> dict[str, Stage]:
        """Returns the stage as it is for each model that learns in it, by its name, the policy's first."""
        return {POLICY: self} | {name: self._of(name, learner) for name, learner in self.learners.items()}

    def _of(self, name: str, learner: LearnerConfig) -> Stage:
        own = copy.deepcopy(self)  # as components may have state
        return replace(
            own,
            name=f"{self.name}, learner {name}",
            estimator=own.estimator if learner.estimator is None else learner.estimator,
            losses=own.losses if learner.losses is None else learner.losses,
            streams=own.streams if learner.streams is None else learner.streams,
            aggregate=learner.aggregate or own.aggregate,
            minibatches=learner.minibatches or own.minibatches,
            optim=learner.optim or own.optim,
            learners={},
        )

    def _check_collects(self) -> None:
        """Refuses what would have no effect in a stage that does not train."""
        untrained = {"losses": not self.losses, "minibatches": self.minibatches == 1, "optim": self.optim == Optim()}
        untrained |= {"early_stop": not self.early_stop.evaluates, "learners": not self.learners}
        for key in (key for key, unset in untrained.items() if not unset):
            raise ValueError(f"{key} has no effect with trains = false: leave it out, or let the stage train")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Configures a run: everything that a config can set."""

    name: Annotated[str, NAME]
    env: Annotated[EnvFamily, Kind("env")]
    stages: tuple[Stage, ...]
    repeats: tuple[Repeat, ...] = ()
    seed: Annotated[int, Range(0, below=2**63)] = 0
    model: Model = field(default_factory=Model)
    critic: Critic | None = None
    models: Mapping[str, FrozenModel] = field(default_factory=dict[str, FrozenModel])
    seats: Seats = field(default_factory=Seats)
    backend: Annotated[Backend, Kind("backend")] = field(default_factory=lambda: _default_backend())
    renderer: Annotated[RendererConfig, Kind("renderer")] = field(default_factory=Auto)
    agent: Annotated[Agent, Kind("agent")] = field(default_factory=Plain)
    sampling: Sampling = field(default_factory=Sampling)
    rollout: Rollout = field(default_factory=Rollout)
    reward: Annotated[Reward, Kind("reward")] = field(default_factory=Native)
    curriculum: Annotated[CurriculumConfig, Kind("curriculum")] = field(default_factory=Cycle)
    evaluation: Evaluation = field(default_factory=Evaluation)
    record: Record = field(default_factory=Record)
    release: Gate | None = None

    @property
    def called(self) -> frozenset[str]:
        """Returns the models beside the policy of the agents that the run's agent calls."""
        return frozenset(sub_agent_models(self.agent).values()) - {POLICY, ""}

    @property
    def acting(self) -> frozenset[str]:
        """Returns the models that act beside the policy in training: in seats, or called by one."""
        return self.seats.others | self.called

    @property
    def seated(self) -> frozenset[str]:
        """Returns the models that act beside the policy, in training or in evaluations."""
        return self.acting | (self.evaluation.seats.others if self.evaluation.seats is not None else frozenset())

    @property
    def learning(self) -> frozenset[str]:
        """Returns the models beside the policy that a stage trains."""
        return frozenset(name for stage in self.stages for name in stage.learners)

    @property
    def asked_for_text(self) -> frozenset[str]:
        """Returns the models that the reward and the agent, with all that they contain, and streams ask for text."""
        asking = [*with_bases([self.reward]), *with_base_agents(self.agent), *self.trained_streams]
        return frozenset[str]().union(*map(asked_for_text, asking))

    @property
    def trained_streams(self) -> list[Stream]:
        """Returns the streams of all stages, and of all models that learn in them."""
        stages: list[Stage | LearnerConfig] = [*self.stages]
        stages += [learner for stage in self.stages for learner in stage.learners.values()]
        return [stream for one in stages for stream in one.streams or ()]

    @property
    def served_seats(self) -> Mapping[str, ServedModel]:
        """Returns the models behind endpoints that take seats, by their names."""
        found = {name: self.models[name].endpoint for name in sorted(self.seated) if name in self.models}
        return {name: served for name, served in found.items() if served is not None}

    @property
    def value_models(self) -> frozenset[str]:
        """Returns the models whose values the reward, with all that it contains, reads: "critic" is the run's own."""
        return frozenset[str]().union(*map(value_models, with_bases([self.reward])))

    @property
    def players(self) -> frozenset[str]:
        """Returns the models with weights here that sample beside the policy: in seats, or asked for text."""
        asked = {n for n in self.asked_for_text if n in self.models and self.models[n].endpoint is None}
        return (self.seated - self.served_seats.keys()) | asked


@dataclass(frozen=True, kw_only=True)
class ModelRecipe:
    """Holds what the models of a run are made of, without the code of its world and its methods."""

    seed: Annotated[int, Range(0, below=2**63)] = 0
    model: Model = field(default_factory=Model)
    backend: Annotated[Backend, Kind("backend")] = field(default_factory=lambda: _default_backend())
    renderer: Annotated[RendererConfig, Kind("renderer")] = field(default_factory=Auto)
    models: Mapping[str, FrozenModel] = field(default_factory=dict[str, FrozenModel])


def _default_backend() -> Backend:
    return build("backend", {"name": "torch"}).value


def all_streams(record: Record, stage: Stage) -> list[Stream]:
    """Returns the streams that a stage trains with, and those that are only recorded."""
    own = {stream.provides for stream in stage.streams}
    return [*stage.streams, *(stream for stream in record.streams if stream.provides not in own)]
