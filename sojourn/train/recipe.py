"""The schema of a recipe: frozen dataclasses, whose fields are the keys of a config."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from sojourn.agents.plain import Plain
from sojourn.batch.weigh import Aggregate
from sojourn.config.fields import FOLDER, NONBLANK, Kind, Range, Text
from sojourn.config.registry import build
from sojourn.credit.grpo import GRPO
from sojourn.curricula.cycle import Cycle
from sojourn.models.spec import Critic, Model, Sampling
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
    SinkConfig,
    SourceConfig,
    Stream,
)
from sojourn.render.auto import Auto
from sojourn.rewards.native import Native
from sojourn.rollout.runner import Rollout
from sojourn.sources.slots import Slots
from sojourn.train.early_stop import EarlyStop
from sojourn.types import SamplingParams

NAME = Text(r"[A-Za-z0-9._-]{1,64}", "1 to 64 of the characters a-z, A-Z, 0-9, '-', '_' and '.'")
STAGE_NAME = Text(
    rf"(?!before$|evaluation){NAME.pattern}",
    f"{NAME.description}, neither 'before' nor beginning with 'evaluation', as evaluations are called",
)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Configures the evaluations: each plays the first `tasks` tasks of the split (all, where it has fewer), each of
    them `samples` times, which is also the greatest k of pass@k.

    A run is evaluated before, between and after its stages, and inside a stage after each `every` steps (0: never).
    `temperature = 0` decodes greedily. `temperature`, `top_p`, `top_k` and `min_p` replace those of `[sampling]`;
    evaluations take the other keys of `[sampling]`, such as `max_tokens`, as they are.
    """

    tasks: Annotated[int, Range(1)] = 64
    samples: Annotated[int, Range(1)] = 1
    split: Annotated[str, NONBLANK] = "test"
    temperature: Annotated[float, Range(0)] = 1.0
    top_p: Annotated[float, Range(above=0, max=1)] = 1.0
    top_k: Annotated[int, Range(0)] = 0
    min_p: Annotated[float, Range(0, 1)] = 0.0
    every: Annotated[int, Range(0)] = 0

    def params(self, sampling: Sampling) -> SamplingParams:
        """Returns the sampling parameters of evaluations in a run with these of training."""
        return replace(
            sampling.params(), temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p
        )


@dataclass(frozen=True, kw_only=True)
class Record:
    """Configures what a run records, and where. `checkpoint_every` counts steps (0: a checkpoint only at the end of a
    stage). The last `keep` checkpoints of a stage stay until it ends; the weights that it ended with stay always.
    With `keep_best`, so do those that did best of all evaluations (by success, then by reward), as `RUN@best`.
    With `keep_optimizer`, the checkpoint at the end of the run has the optimiser's moments too, with which a finished
    run can be given more steps; without, it has the weights alone, about a third of the size.

    `drift_groups` groups of each step are scored by the weights that the stage began with, and the KL divergence of the
    policy from them is recorded as the metric `drift` (0: not measured). The metric `kl` is the KL divergence between
    the policy that sampled and the one that trained: 0 on-policy. `tags` help to find a run among others.

    Every token is recorded with its weight and the values of the stage's streams; `streams` names further streams,
    such as entropy, that are recorded but not trained on.
    """

    folder: Annotated[str, FOLDER] = "runs"
    checkpoint_every: Annotated[int, Range(0)] = 10
    keep: Annotated[int, Range(1)] = 2
    keep_best: bool = False
    keep_optimizer: bool = True
    drift_groups: Annotated[int, Range(0)] = 0
    tags: tuple[Annotated[str, NONBLANK], ...] = ()
    streams: Annotated[tuple[Stream, ...], Kind("stream")] = ()
    sinks: Annotated[tuple[SinkConfig, ...], Kind("sink")] = ()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Configures one stage of training: where its groups come from, which estimator assigns their credit, and which
    losses are minimised."""

    name: Annotated[str, STAGE_NAME] = "train"
    steps: Annotated[int, Range(0)] = 10
    groups: Annotated[SourceConfig, Kind("groups")] = field(default_factory=Slots)
    filters: Annotated[tuple[Filter, ...], Kind("filter")] = ()
    estimator: Annotated[Estimator, Kind("estimator")] = field(default_factory=GRPO)
    losses: Annotated[tuple[Loss, ...], Kind("loss")] = ()
    streams: Annotated[tuple[Stream, ...], Kind("stream")] = ()
    aggregate: Aggregate = field(default_factory=Aggregate)
    minibatches: Annotated[int, Range(1, 1024)] = 1
    optim: Optim = field(default_factory=Optim)
    early_stop: EarlyStop = field(default_factory=EarlyStop)

    def __post_init__(self) -> None:
        if not self.losses:
            raise ValueError("no losses: give at least one, such as losses = [{name = 'ppo'}]")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Configures a run: everything that a config can set."""

    name: Annotated[str, NAME]
    env: Annotated[EnvFamily, Kind("env")]
    stages: tuple[Stage, ...]
    seed: Annotated[int, Range(0, below=2**63)] = 0
    model: Model = field(default_factory=Model)
    critic: Critic | None = None
    backend: Annotated[Backend, Kind("backend")] = field(default_factory=lambda: _default_backend())
    renderer: Annotated[RendererConfig, Kind("renderer")] = field(default_factory=Auto)
    agent: Annotated[Agent, Kind("agent")] = field(default_factory=Plain)
    sampling: Sampling = field(default_factory=Sampling)
    rollout: Rollout = field(default_factory=Rollout)
    reward: Annotated[Reward, Kind("reward")] = field(default_factory=Native)
    curriculum: Annotated[CurriculumConfig, Kind("curriculum")] = field(default_factory=Cycle)
    evaluation: Evaluation = field(default_factory=Evaluation)
    record: Record = field(default_factory=Record)


def _default_backend() -> Backend:
    return build("backend", {"name": "torch"}).value


def recorded_streams(record: Record, stage: Stage) -> list[Stream]:
    """Returns the streams that are recorded, but not used to train."""
    return [stream for stream in record.streams if stream.provides not in {own.provides for own in stage.streams}]
