"""The roles of a run: what each part must offer. Nothing here is inherited from; a class that fits, fits.

Every component of a config table is a frozen dataclass whose fields are its config. What has memory offers
`state()` / `restore(state)` (JSON, or arrays), and a checkpoint walks them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

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

    from sojourn.streams.passes import Passes


class Env(Protocol):
    """One play of one task, used once: `start`, `step` until done, then `close` (always called, also after errors).

    Optional, found by name: `async fork() -> Env` (an independent copy in the same state), `state_key() -> str`
    (what counts as the same state), `expert() -> str` (the next action of a scripted expert, or a coroutine of it,
    as the agent would say it; every action has an effect, and following it from any state reaches success where that
    is still possible), `blobs: Mapping[str, bytes]` (the images that its messages name, by SHA-256 in hexadecimal;
    a run keeps them beside its episodes).

    `step` raises `ActionError` when the action is malformed or impossible, with the world unchanged, and anything else
    only for failures that are not the agent's fault. What an agent can bring about (it ruins what it works in, breaks
    or stalls the engine) ends the play with the worst reward and the info `lost`; where a world cannot know, it is
    played again to find out (`sojourn/rollout/blame.py`).
    """

    async def start(self) -> Observation: ...
    async def step(self, agent: str, action: Message) -> Step: ...
    async def close(self) -> None: ...


class EnvFamily(Protocol):
    """A world: its tasks and how to enter them. Optional: `async open()` / `async close()` for shared resources,
    `capacity`, how many plays it can hold at once (no limit without it), `seats`, the names of those who play where
    they are several (the policy sits in each, and learns from each), `about`, what it says of itself (`About`), and
    `lowest_reward`, what a play pays that its agent broke (-1 without it).
    One that is made of several has them as `worlds`, and `world_of(task)`.

    `tasks(split)` gives the tasks of "train" or "test", decided by the config alone, as a sequence with random access
    (lazy where tasks are generated: see `sojourn.tasks.Generated`). The splits share no task.
    """

    def tasks(self, split: str) -> Sequence[Task]: ...
    def make(self, task: Task) -> Env: ...


@runtime_checkable
class HasRisks(Protocol):
    """A world that knows which of its protections this machine does not give, in whole sentences; none where all hold.
    Commands print them before they play."""

    def risks(self) -> Sequence[str]: ...


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


class Sampler(Protocol):
    """Draws from the published weights. Optional: `async forget()` drops whatever is kept between samples, so that the
    next do not depend, not even in their last bits, on what was sampled before; `metrics()` gives figures by name, of
    what was done since it was last called, for the record of each step."""

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample: ...
    async def score(self, prompt: Prompt) -> Any:
        """The log-probability of every token of the prompt but the first, given those before it: (P - 1,)."""
        ...


class Agent(Protocol):
    """One seat in one episode. `act` raises `BudgetError` when the context can take no further turn."""

    async def act(self, observation: Observation) -> Message: ...
    def pay(self, reward: float, info: Mapping[str, float]) -> None: ...
    def fork(self) -> Agent: ...
    def finish(self, ending: Ending) -> Trajectory: ...


class Reward(Protocol):
    async def __call__(self, group: Group) -> list[Score]: ...


class Filter(Protocol):
    """Says which of a group's episodes are trained, by their numbers; the rest is recorded, and counts in metrics."""

    def __call__(self, group: Group, scores: Sequence[Score]) -> Sequence[int]: ...


class Stream(Protocol):
    """Side information for every sampled token, under the name that it provides; `reference` says whether it reads
    passes of the weights that the stage began with, which are kept then.

    Optional: `critic: bool`, whether it reads the critic's values; `async learn(passes) -> Mapping[str, float]`, after
    every stream has said what it has to say of the step, and what it says of how well it learns, for the metrics (what
    it learnt goes on in the next stage, in a stream that is set up alike); `close()`, when its stage has ended;
    `task_data: frozenset[str]`, the keys of `Task.data` that it reads, which the world's first task must have.
    """

    provides: ClassVar[str]
    reference: ClassVar[bool]

    async def __call__(self, passes: Passes) -> list[list[tuple[Any, ...]]]: ...


class Estimator(Protocol):
    """Turns scores into advantages; pure numpy; sees the whole step. One list of credits per group.

    Optional: `world: frozenset[str]`, what the plays of a world must offer, such as "state_key"; `gives:
    frozenset[str]`, "targets" where its credit says what a critic should have said; `least_size: int`, how many
    episodes a group must have for its credit not to be zero.
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
    def top(
        self,
    ) -> torch.Tensor: ...  # (n,) of the likeliest token, with gradient, where a loss needs "top"; else (0,)


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

    `proportional` says that the loss and its gradient are 0 where the advantage is 0, so such sequences may be skipped.

    Optional, found by name: `columns(batch) -> Mapping[str, FloatArray]`, per-token columns that follow from the step
    as a whole, such as its extreme tokens; they come back as streams. `follows`, what the loss stays right for: "lag"
    (tokens of older weights), "updates" (several of them on one step's tokens) and "unsampled" (tokens that no weights
    sampled, so without logprobs); the first two, where it does not say.
    `left_out(out, batch)`, what it kept from each token's loss (n,), with gradient, and `floor`: the policy's gradient
    is divided by the norm of its gradient, or by `floor` where that is more; where `floor` is None it is not.
    """

    @property
    def needs(self) -> frozenset[str]: ...
    @property
    def proportional(self) -> bool: ...

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]: ...


@runtime_checkable
class Identifies(Protocol):
    """A backend that says exactly which weights it opens."""

    def identities(self, model: Any, critic: Any) -> Mapping[str, str]:
        """By the role of each model ("policy", "critic"): its commit, version or digest; empty while it is not here."""
        ...


class Trainer(Protocol):
    """The four verbs, and persistence. Only `publish` changes what samplers draw from.

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
        likeliest: bool = False,
        instead: IntArray | None = None,
    ) -> Forward:
        """What the weights say of the tokens that carry weight; with `instead`, of those (N,) in their places."""
        ...

    async def states(self, batch: Batch, places: IntArray) -> FloatArray:
        """The last hidden states (P, H), in fp32, after the tokens of a batch at these places, without a gradient."""
        ...

    def twin(self, optim: Any, *, reference: bool) -> Trainer:
        """A trainer of its own for a copy of the present weights, whose `publish` reaches no sampler; they are its
        reference, if asked for."""
        ...

    async def forward_backward(self, batch: Batch, losses: Sequence[Loss]) -> Mapping[str, float]: ...
    async def optim_step(self) -> Mapping[str, float]: ...
    async def publish(self) -> int: ...
    def save(self, folder: Path, *, weights_only: bool = False) -> None: ...
    def load(self, folder: Path, *, weights_only: bool = False) -> None: ...
    def state(self) -> Mapping[str, Any]: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...
    def memory(self) -> Mapping[str, Any]:
        """Weights and moments of the optimiser as arrays, for what keeps a `twin`; `remember` takes them back."""
        ...

    def remember(self, memory: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class Curriculum(Protocol):
    def draw(self, slot: int, redraw: int = 0) -> Task: ...
    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None: ...


class Groups(Protocol):
    """The config of a group source. `live`: its groups are played by the policy, not recorded or demonstrated.

    Optional: `async check(recipe, stage)`, asked before a run begins; raises `ConfigError` where the recipe, or its
    world, which is open by then, cannot give such groups.
    """

    width: int  # groups of a step
    live: ClassVar[bool]

    def tasks(self, steps: int) -> int:
        """How many tasks of the curriculum so many steps take: the next stage begins after them."""
        ...

    def bind(self, rig: Any, stage: str, steps: int, first: int = 0) -> GroupSource:
        """Bound to a stage, drawing the curriculum's tasks from number `first` on."""
        ...


class GroupSource(Protocol):
    """Where a step's groups come from: live slots, demonstrations, a folder on disk."""

    async def take(self, step: int) -> list[Group]: ...
    async def close(self) -> None: ...


@runtime_checkable
class HasMetrics(Protocol):
    """A group source with figures of its own, of what it gave since it was last asked, for the metrics of a step."""

    def metrics(self) -> Mapping[str, float]: ...


@runtime_checkable
class Stateful(Protocol):
    def state(self) -> Mapping[str, Any]: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...
