"""The roles of a run, as structural types: a class needs the methods of its role, and no base class.

Each protocol lists every method that Sojourn calls on the object. What a class may offer besides is a small protocol
of its own in `sojourn/abilities/`, which `isinstance` asks for. A component of a config table is a frozen dataclass
whose fields are its config. If it also needs objects of the run, its `bind` takes them and returns the object that does
the work (`Slots.bind` returns `LiveSlots`). What changes during a run is `Stateful`, and is part of each checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from numpy.typing import NDArray

from sojourn.types import (
    Batch,
    Credit,
    Ending,
    FloatArray,
    Group,
    IntArray,
    Message,
    Observation,
    Prompt,
    Sample,
    SamplingParams,
    Score,
    Step,
    Streams,
    Task,
    Tool,
    Trajectory,
)

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from sojourn.errors import ActionError
    from sojourn.models.asking import EpisodeModels
    from sojourn.models.spec import Critic, Model
    from sojourn.optim import Optim
    from sojourn.timeline import Timeline


class Env(Protocol):
    """The world of one episode, used once: `start`, `step` until done, then `close`, also after errors. What fails in
    `close` does not undo a complete episode, but is counted as a failure.

    `step` raises `ActionError` when the action is malformed or impossible, with the world unchanged, and anything else
    only for failures that are not the agent's fault. Where the agent itself broke or stalled the world, `step` ends the
    episode with the worst reward and the info `lost`. A world that cannot know this raises; then the actions are
    replayed to find the cause (`sojourn/blame.py`).

    Optional: `Forkable`, `HasStateKey`, `HasExpert`, `HasBlobs`.
    """

    async def start(self) -> Observation: ...
    async def step(self, agent: str, action: Message) -> Step: ...
    async def close(self) -> None: ...


class EnvFamily(Protocol):
    """A world: its tasks and how to enter them.

    `tasks(split)` gives the tasks of "train" or "test", decided by the config alone, as a sequence with random access
    (lazy where tasks are generated: see `sojourn.tasks.Generated`). The splits share no task.

    Optional: `Opens`, `Closes`, `HasCapacity`, `HasSeats`, `HasLowestReward`, `HasRisks`, `HasWorlds`, `Relabels`,
    `MeasuresPolicy`, `ReportsParts`, and a class variable `about` (`sojourn.envs.about.About`): what it says of itself.
    """

    def tasks(self, split: str) -> Sequence[Task]: ...
    def make(self, task: Task) -> Env: ...


class Renderer(Protocol):
    """The only code that knows a chat format.

    `open` renders a whole context that ends where the assistant is to speak. `extend` renders only what comes between
    the last sample and the assistant's next turn, the end of an unfinished sample's turn included; it returns None
    where the format rewrites what came before. `parse` reads sampled tokens back into a message, for people and worlds;
    it raises `ActionError` when they cannot be read (an unfinished tool call). `encode_reply` returns the tokens that a
    model would sample to say a message, with its end-of-turn token (for demonstrations).
    """

    @property
    def stops(self) -> tuple[int, ...]: ...  # token ids that end the assistant's turn

    def open(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt: ...
    def extend(self, last: Sample, messages: Sequence[Message]) -> Prompt | None: ...
    def parse(self, tokens: Sequence[int]) -> Message: ...
    def encode_reply(self, message: Message) -> Sequence[int]: ...


class RendererConfig(Protocol):
    """The config of a renderer, bound to a tokenizer; `template` names the one that fits its chat template."""

    def bind(self, tokenizer: Any, template: str) -> Renderer: ...


class Sampler(Protocol):
    """Samples from the model as it was published last. Optional: `Forgets`, `Measured`, `ReportsParts`, `TellsTokens`.

    `score` returns the log-probability of every token of the prompt but the first, given those before it: (P - 1,).
    """

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample: ...
    async def score(self, prompt: Prompt) -> FloatArray: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class AgentContext:
    """Holds what an agent is given for one seat: its name, the model's format, the engine, how to sample, whether the
    seat is trained, the models that learn in the run, and what asks its models for text (None outside of a run)."""

    name: str
    renderer: Renderer
    sampler: Sampler
    params: SamplingParams
    max_context: int
    trainable: bool = True
    trained: Collection[str] = (SamplingParams.model,)
    models: EpisodeModels | None = None


class Agent(Protocol):
    """The config of an agent, which takes one or more seats in each episode."""

    def seat(self, context: AgentContext) -> Seat: ...


class Seat(Protocol):
    """One participant of one episode, who turns observations into actions and keeps the turns.

    `act` returns the next action; `state` is the world's state key, to be recorded. It raises `BudgetError` where the
    context can take no further turn, `ActionError` where what was sampled cannot be read, and `NoActionError` where the
    turn is no action of the world. `add_reward` adds to the last turn, to the first where there is none yet, or to the
    trajectory of a seat that never acts. `refuse` returns what the seat is shown after its action was refused.
    `ends_when_malformed` says whether a malformed action ends the episode.
    """

    @property
    def ends_when_malformed(self) -> bool: ...
    async def act(self, observation: Observation, state: str | None = None) -> Message: ...
    def add_reward(self, reward: float, info: Mapping[str, float]) -> None: ...
    def refuse(self, error: ActionError, observation: Observation) -> Observation: ...
    def finish(self, ending: Ending) -> Trajectory: ...


class Reward(Protocol):
    """Scores the trajectories of a group (`group.trajectories`): one score for each, with a reward for each turn."""

    async def __call__(self, group: Group) -> list[Score]: ...


class Filter(Protocol):
    """Returns which of a group's episodes are trained, by their numbers; all are recorded and count in metrics."""

    def __call__(self, group: Group, scores: Sequence[Score]) -> Sequence[int]: ...


PerTurn = list[list[tuple[Any, ...]]]  # by group and trajectory, an array for each turn's sampled tokens


class Forward(NamedTuple):
    """Holds what a pass without gradients returns for a batch's tokens; 0 at those of weight 0."""

    logprobs: FloatArray  # (N,)
    entropy: FloatArray  # (N,) in nats
    values: FloatArray  # (N,) of the critic, before each token; 0 where it was not asked
    next_values: FloatArray  # (N,) of the critic, after each token
    columns: Mapping[str, NDArray[Any]]  # (N,) each, those that were asked for by name


class TurnStates(NamedTuple):
    """A model's last hidden states around those turns of one trajectory that sampled anything."""

    turns: list[int]
    before: FloatArray  # (n, H), before the first token of each
    after: FloatArray  # (n, H), after the last


class TurnSpan(NamedTuple):
    """The span of a turn's sampled tokens in a flat batch: from `start` to `stop`."""

    group: int
    trajectory: int
    turn: int
    start: int
    stop: int


class StepContext(Protocol):
    """Offers what a stream may read of a step: its groups and scores, and passes of the model over them.

    `read` returns the array that `select` takes from a pass of the present weights, or of the reference model; `states`
    hidden states of either around each turn, by group and trajectory; `flat` the step's flat batch, and the span of
    each turn's sampled tokens in it. `renderer` renders texts that a stream adds itself, such as a question.
    """

    groups: Sequence[Group]
    scores: Sequence[Sequence[Score]]
    trainer: Trainer
    renderer: Renderer | None

    async def read(self, select: Callable[[Forward], FloatArray], *, reference: bool = False) -> PerTurn: ...

    async def states(self, *, reference: bool = False) -> list[list[TurnStates]]: ...

    @property
    def flat(self) -> tuple[Batch, list[TurnSpan]]: ...


class Stream(Protocol):
    """Side information for every sampled token, under the name that it provides.

    `reference` says whether it reads the reference model, which is the policy as the stage began; the trainer keeps it
    then. Optional: `ReadsCritic`, `Learns`, `ReleasesResources`, `ReadsTaskData`.
    """

    @property
    def provides(self) -> str: ...
    @property
    def reference(self) -> bool: ...

    async def __call__(self, context: StepContext) -> PerTurn: ...


class Estimator(Protocol):
    """Computes the advantages of a step's tokens from its scores, in numpy: one list of credits per group.

    `needs` names the streams that it reads. It gets all groups of the step, as a baseline may take in several.
    Optional: `NeedsOfEnv`, `ProvidesTargets`, `HasMinGroupSize`.
    """

    @property
    def needs(self) -> frozenset[str]: ...

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]: ...


@dataclass(frozen=True)
class PassOutput:
    """Holds what a forward pass gives the losses, for the n tokens of the batch that carry weight, in their order."""

    logprobs: torch.Tensor  # (n,) with gradient
    entropy: torch.Tensor  # (n,) in nats; with gradient where a loss needs "entropy"
    values: torch.Tensor  # (n,) of the critic, with gradient, where a loss needs "critic"; else (0,)
    columns: Mapping[str, torch.Tensor] = field(default_factory=dict[str, "torch.Tensor"])  # (n,) that losses need


@dataclass(frozen=True)
class SelectedTokens:
    """The batch as the losses see it: tensors for the n tokens that carry weight."""

    weight: torch.Tensor  # (n,)
    logprobs: torch.Tensor  # (n,) of the sampler
    advantages: torch.Tensor  # (n,)
    turn: torch.Tensor  # (n,) the turn of each token, numbered 0, 1, ... in this micro-batch
    sequence: torch.Tensor  # (n,) the sequence of each token, numbered alike
    streams: Mapping[str, torch.Tensor]  # (n,) by name


class Loss(Protocol):
    """A per-token loss, never a mean, and per-token metrics (averaged by the trainer under the same weights).

    `needs` names the streams that it reads; and "entropy", "critic" and "targets", or columns of the backend's passes.
    `zero_at_zero_advantage` says that the loss and its gradient are 0 where the advantage is 0, so that such sequences
    may be skipped, in metrics too. Optional: `HasColumns`, `Chooses`, `HasValidFor`, `DividesGradient`.
    """

    @property
    def needs(self) -> frozenset[str]: ...
    @property
    def zero_at_zero_advantage(self) -> bool: ...

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]: ...


@runtime_checkable
class Stateful(Protocol):
    def state(self) -> Mapping[str, Any]: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...


class Trainer(Stateful, Protocol):
    """Computes gradients and updates the model; only `publish` changes what samplers draw from.

    `begin` starts a stage of `updates` updates: a new optimiser, and the present weights as the reference if asked for.
    `forward` returns log-probabilities of the tokens with weight, or of `tokens` (N,) in their positions, and columns.
    `save` is called in a thread, while nothing trains. Optional: `Copies`, `HasHiddenStates`, `ReportsParts`.
    """

    version: int

    def begin(self, optim: Optim, updates: int, *, reference: bool) -> None: ...
    async def forward(
        self,
        batch: Batch,
        *,
        reference: bool = False,
        critic: bool = False,
        columns: Sequence[str] = (),
        tokens: IntArray | None = None,
    ) -> Forward: ...

    async def forward_backward(self, batch: Batch, losses: Sequence[Loss]) -> Mapping[str, float]: ...
    async def optim_step(self) -> Mapping[str, float]: ...
    async def publish(self) -> int: ...
    def save(self, folder: Path, *, weights_only: bool = False) -> None: ...
    def load(self, folder: Path, *, weights_only: bool = False) -> None: ...
    def close(self) -> None: ...


class CurriculumConfig(Protocol):
    """The config of a curriculum, which is bound to the tasks of its split."""

    @property
    def split(self) -> str: ...

    def bind(self, tasks: Sequence[Task], seed: int) -> Curriculum: ...


class Curriculum(Protocol):
    """Decides which task each group plays, and observes everything that was played.

    `redraw` counts how often the slot was played before, with groups that taught nothing. Optional: `Measured`.
    """

    def draw(self, slot: int, redraw: int = 0) -> Task: ...
    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None: ...


PartsT = TypeVar("PartsT", contravariant=True)  # what a source uses of a run: see `sources/context.py`


class SourceConfig(Protocol[PartsT]):
    """The config of a group source, bound to each stage that it serves. Optional: `Sized`, `Lags`, `Checks`.

    `live` says whether the policy plays its groups, `width` how many a step has. `tasks` returns how many tasks such a
    stage takes from the curriculum, and `first` is how many those before it took.
    """

    @property
    def width(self) -> int: ...
    @property
    def live(self) -> bool: ...

    def tasks(self, steps: int) -> int: ...
    def bind(self, context: PartsT, stage: str, steps: int, first: int = 0) -> Source: ...


class Source(Protocol):
    """Gives the groups of a step: live slots, demonstrations, a folder on disk."""

    async def take(self, step: int) -> list[Group]: ...
    async def close(self) -> None: ...


class Opened(NamedTuple):
    """An open backend: the trainer and sampler of a model, its renderer, and its longest context in tokens."""

    trainer: Trainer
    sampler: Sampler
    renderer: Renderer
    max_context: int


class Backend(Protocol):
    """The config of a backend, which trains and samples. Optional: `Identifies`, `HasMaxContext`, `HasPassColumns`,
    `HasSlowdowns`, `ExportsModels`.

    `check` raises `ModelError` where a model cannot be found or the device is not there, without loading anything.
    """

    def check(self, model: Model, critic: Critic | None = None) -> None: ...
    def open(
        self, model: Model, renderer: RendererConfig, seed: int, timeline: Timeline | None, critic: Critic | None = None
    ) -> Opened: ...
