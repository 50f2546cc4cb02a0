"""The roles of a run: what each part must offer. Nothing here is inherited from; a class that fits, fits.

Each role names every method that is called of it. What a class may offer besides is a small protocol of its own
(`Forkable`, `HasExpert`, `Learns`, ...), which `isinstance` asks for. Every component of a config table is a frozen
dataclass whose fields are its config; one that needs the run's parts before it can work has a method `bind` that gives
the part at work. What has memory is `Stateful` (JSON, or arrays), and a checkpoint walks them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from sojourn.types import (
    Batch,
    Credit,
    Ending,
    FloatArray,
    Forward,
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
    from sojourn.timeline import Timeline


class Env(Protocol):
    """One play of one task, used once: `start`, `step` until done, then `close` (always called, also after errors).

    `step` raises `ActionError` when the action is malformed or impossible, with the world unchanged, and anything else
    only for failures that are not the agent's fault. What an agent can bring about (it ruins what it works in, breaks
    or stalls the engine) ends the play with the worst reward and the info `lost`; where a world cannot know, it is
    played again to find out (`sojourn/rollout/blame.py`).

    Optional: `Forkable`, `HasStateKey`, `HasExpert`, `HasBlobs`.
    """

    async def start(self) -> Observation: ...
    async def step(self, agent: str, action: Message) -> Step: ...
    async def close(self) -> None: ...


class EnvFamily(Protocol):
    """A world: its tasks and how to enter them.

    `tasks(split)` gives the tasks of "train" or "test", decided by the config alone, as a sequence with random access
    (lazy where tasks are generated: see `sojourn.tasks.Generated`). The splits share no task.

    Optional: `Opens`, `Closes`, `HasCapacity`, `HasSeats`, `HasLowestReward`, `HasRisks`, `HasWorlds`, and a class
    variable `about` (`sojourn.envs.about.About`), what the world says of itself.
    """

    def tasks(self, split: str) -> Sequence[Task]: ...
    def make(self, task: Task) -> Env: ...


class Renderer(Protocol):
    """The only code that knows a chat format.

    `open` renders a whole context that ends where the assistant is to speak. `extend` renders only what follows the
    last sample: the tokens that come between the sample and the assistant's next turn (closing what the sample left
    open), or None where the format rewrites what came before. `parse` reads sampled tokens back into a message, for
    people and worlds; it raises `ActionError` when they cannot be read (an unfinished tool call).
    """

    stops: tuple[int, ...]  # token ids that end the assistant's turn

    def open(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt: ...
    def extend(self, last: Sample, messages: Sequence[Message]) -> Prompt | None: ...
    def parse(self, tokens: Sequence[int]) -> Message: ...
    def encode_reply(self, message: Message) -> Sequence[int]:
        """The tokens that the assistant would sample to say this, the end-of-turn token included (demonstrations)."""
        ...


class RendererConfig(Protocol):
    """The config of a renderer, which is bound to a model's tokenizer; `template` is the name of the model's format."""

    def bind(self, tokenizer: Any, template: str) -> Renderer: ...


class Sampler(Protocol):
    """Draws from the published weights. Optional: `Forgets`, `Measured`."""

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample: ...
    async def score(self, prompt: Prompt) -> FloatArray:
        """Returns the log-probability of every token of the prompt but the first, given those before it: (P - 1,)."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class AgentContext:
    """What an agent is given for one seat: its name, the model's format, the engine, and how to sample."""

    name: str
    renderer: Renderer
    sampler: Sampler
    params: SamplingParams
    max_context: int
    trainable: bool = True


class Agent(Protocol):
    """The config of an agent, which takes a seat in each episode."""

    def seat(self, context: AgentContext) -> Seat: ...


class Seat(Protocol):
    """One seat in one episode.

    `act` returns the next action; `state` is the world's state key, to be recorded. It raises `BudgetError` where the
    context can take no further turn and `ActionError` where what was sampled cannot be read. `add_reward` adds to the
    last turn, or to the first where there is none yet. `refuse` returns what the seat is shown after its action was
    refused. `ends_when_malformed` says whether a malformed action ends the episode.
    """

    @property
    def ends_when_malformed(self) -> bool: ...
    async def act(self, observation: Observation, state: str | None = None) -> Message: ...
    def add_reward(self, reward: float, info: Mapping[str, float]) -> None: ...
    def refuse(self, error: ActionError, observation: Observation) -> Observation: ...
    def finish(self, ending: Ending) -> Trajectory: ...


class Reward(Protocol):
    async def __call__(self, group: Group) -> list[Score]: ...


class Filter(Protocol):
    """Says which of a group's episodes are trained, by their numbers; the rest is recorded, and counts in metrics."""

    def __call__(self, group: Group, scores: Sequence[Score]) -> Sequence[int]: ...


PerTurn = list[list[tuple[Any, ...]]]  # by group and trajectory, an array for each turn's sampled tokens


class TurnStates(NamedTuple):
    """The policy's last hidden states around those turns of one trajectory that sampled anything."""

    turns: list[int]
    before: FloatArray  # (n, H), before the first token of each
    after: FloatArray  # (n, H), after the last


class Place(NamedTuple):
    """Where the sampled tokens of a turn lie in a flat batch: from `start` to `stop`."""

    group: int
    trajectory: int
    turn: int
    start: int
    stop: int


class StepContext(Protocol):
    """What a stream may read of a step: its groups and scores, and passes of the model over them.

    The renderer is for prompts and replies that were not sampled.
    """

    groups: Sequence[Group]
    scores: Sequence[Sequence[Score]]
    trainer: Trainer
    renderer: Renderer | None

    async def read(self, column: Callable[[Forward], FloatArray], *, reference: bool = False) -> PerTurn:
        """Returns what `column` takes from a pass of the present weights, or of those that the stage began with."""
        ...

    async def states(self) -> list[list[TurnStates]]:
        """Returns the policy's hidden states around each turn, by group and trajectory."""
        ...

    @property
    def flat(self) -> tuple[Batch, list[Place]]:
        """The step's flat batch, and the place of each turn's sampled tokens in it."""
        ...


class Stream(Protocol):
    """Side information for every sampled token, under the name that it provides.

    `reference` says whether it reads passes of the weights that the stage began with, which are kept then. Optional:
    `ReadsCritic`, `Learns`, `ReleasesResources`, `ReadsTaskData`.
    """

    provides: ClassVar[str]
    reference: ClassVar[bool]

    async def __call__(self, context: StepContext) -> PerTurn: ...


class Estimator(Protocol):
    """Turns scores into advantages; pure numpy; sees the whole step. One list of credits per group.

    Optional: `NeedsOfEnv`, `ProvidesTargets`, `HasMinGroupSize`.
    """

    @property
    def needs(self) -> frozenset[str]: ...

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]: ...


class Output(Protocol):
    """What a forward pass gives the losses, for the n tokens of the batch that carry weight, in their order."""

    @property
    def logprobs(self) -> torch.Tensor: ...  # (n,) with gradient
    @property
    def entropy(self) -> torch.Tensor: ...  # (n,) in nats; with gradient where a loss needs "entropy"
    @property
    def values(self) -> torch.Tensor: ...  # (n,) of the critic, with gradient, where a loss needs "critic"; else (0,)
    @property
    def columns(self) -> Mapping[str, torch.Tensor]: ...  # (n,) by name: those of `HasPassColumns` that losses need


class Selected(Protocol):
    """The batch as the losses see it: tensors for the n tokens that carry weight."""

    @property
    def weight(self) -> torch.Tensor: ...  # (n,)
    @property
    def logprobs(self) -> torch.Tensor: ...  # (n,) of the sampler
    @property
    def advantages(self) -> torch.Tensor: ...  # (n,)
    @property
    def turn(self) -> torch.Tensor: ...  # (n,) numbers from 0 on: which tokens are of one turn
    @property
    def sequence(self) -> torch.Tensor: ...  # (n,) numbers from 0 on: which tokens are of one path of turns
    @property
    def streams(self) -> Mapping[str, torch.Tensor]: ...  # name -> (n,)


class Loss(Protocol):
    """A per-token loss, never a mean, and per-token metrics (averaged by the trainer under the same weights).

    `zero_at_zero_advantage` says that the loss and its gradient are 0 where the advantage is 0, so that such sequences
    may be skipped. Optional: `HasColumns`, `Chooses`, `HasValidFor`, `DividesGradient`.
    """

    @property
    def needs(self) -> frozenset[str]: ...
    @property
    def zero_at_zero_advantage(self) -> bool: ...

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]: ...


@runtime_checkable
class Stateful(Protocol):
    def state(self) -> Mapping[str, Any]: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...


class Trainer(Stateful, Protocol):
    """The four verbs, and persistence. Only `publish` changes what samplers draw from. Optional: `Copies`,
    `HasHiddenStates`.

    `begin` starts a stage of `steps` updates: a new optimiser, and the present weights as the reference if asked for.
    """

    version: int

    def begin(self, optim: Any, steps: int, *, reference: bool) -> None: ...
    async def forward(
        self,
        batch: Batch,
        *,
        reference: bool = False,
        critic: bool = False,
        columns: Sequence[str] = (),
        tokens: IntArray | None = None,
    ) -> Forward:
        """Scores the tokens that carry weight, or other `tokens` (N,) in their places; `columns` are asked for too."""
        ...

    async def forward_backward(self, batch: Batch, losses: Sequence[Loss]) -> Mapping[str, float]: ...
    async def optim_step(self) -> Mapping[str, float]: ...
    async def publish(self) -> int: ...
    def save(self, folder: Path, *, weights_only: bool = False) -> None: ...
    def load(self, folder: Path, *, weights_only: bool = False) -> None: ...
    def close(self) -> None: ...


class CurriculumConfig(Protocol):
    """The config of a curriculum, which is bound to the tasks of its split."""

    split: str

    def bind(self, tasks: Sequence[Task], seed: int) -> Curriculum: ...


class Curriculum(Protocol):
    """Decides which task each group plays, and observes everything that was played."""

    def draw(self, slot: int, redraw: int = 0) -> Task: ...
    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None: ...


class SourceConfig(Protocol):
    """The config of a group source, bound to each stage that it serves. Optional: `Sized`, `Lags`, `Checks`.

    `live` says whether its groups are played by the policy, not recorded or demonstrated; `tasks` returns how many
    tasks of the curriculum so many steps take: the next stage begins after them.
    """

    width: int  # groups of a step
    live: ClassVar[bool]

    def tasks(self, steps: int) -> int: ...
    def bind(self, context: Any, stage: str, steps: int, first: int = 0) -> Source: ...


class Source(Protocol):
    """Where the groups of a step come from: live slots, demonstrations, a folder on disk."""

    async def take(self, step: int) -> list[Group]: ...
    async def close(self) -> None: ...


class Sink(Protocol):
    """Where the numbers of a run go, besides its own file."""

    def write(self, step: int, stage: str, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class SinkConfig(Protocol):
    """The config of a sink, bound to a run's folder and its complete config."""

    def bind(self, folder: Path, config: Mapping[str, Any]) -> Sink: ...


class Opened(NamedTuple):
    """A backend at work: its trainer and sampler over the same weights, the model's format, and its longest context."""

    trainer: Trainer
    sampler: Sampler
    renderer: Renderer
    max_context: int


class Backend(Protocol):
    """The config of what computes. Optional: `Identifies`, `HasMaxContext`, `HasPassColumns`.

    `check` raises `ModelError` where a model cannot be found or the device is not there, without loading anything.
    """

    def check(self, model: Any, critic: Any = None) -> None: ...
    def open(
        self, model: Any, renderer: RendererConfig, seed: int, timeline: Timeline | None = None, critic: Any = None
    ) -> Opened: ...
