"""What a part of a run may offer besides its role: small protocols, which `isinstance` asks for.

An environment, a seat, a sampler, a component may offer any of these. The functions of this module (`max_lag`,
`group_size`, ...) return the default where it offers none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

from sojourn.protocols import (
    Env,
    EnvFamily,
    PassOutput,
    Renderer,
    RendererConfig,
    Seat,
    SelectedTokens,
    StepContext,
    Trainer,
)
from sojourn.types import Batch, FloatArray, IntArray, Message, Task

if TYPE_CHECKING:
    import torch


@runtime_checkable
class Forkable(Protocol):
    """A play that can be copied: `fork` returns an independent play in the same state."""

    async def fork(self) -> Env: ...


@runtime_checkable
class HasStateKey(Protocol):
    """A play that says what counts as the same state: equal states have equal keys."""

    def state_key(self) -> str: ...


@runtime_checkable
class HasExpert(Protocol):
    """A play with a scripted expert.

    `expert` returns the expert's next action as the agent would say it, or a coroutine of it. Every such action has an
    effect, and following the expert from any state reaches success where that is still possible.
    """

    def expert(self) -> str | Awaitable[str]: ...


def has_expert(env: Env) -> TypeGuard[HasExpert]:
    """Returns whether a play has an expert. `isinstance` alone is True, from Python 3.12 on, also where `expert` is a
    property that raises `AttributeError`, as it does on a page that has none."""
    try:
        return isinstance(env, HasExpert) and callable(env.expert)
    except AttributeError:
        return False


@runtime_checkable
class HasNativeActions(Protocol):
    """A play in which agents are to act by structured tool calls alone.

    `native_action` returns the message whose calls do what an action written as text does, such as the expert's.
    """

    def native_action(self, text: str) -> Message: ...


@runtime_checkable
class HasBlobs(Protocol):
    """A play whose messages show images: `blobs` has them by SHA-256 in hexadecimal, and a run keeps them."""

    @property
    def blobs(self) -> Mapping[str, bytes]: ...


@runtime_checkable
class Opens(Protocol):
    """A world with resources that its plays share: `open` is awaited before the first play."""

    async def open(self) -> None: ...


@runtime_checkable
class Closes(Protocol):
    """A world that is closed after its last play."""

    async def close(self) -> None: ...


@runtime_checkable
class HasCapacity(Protocol):
    """A world that can hold at most `capacity` plays at once; others have no limit."""

    @property
    def capacity(self) -> int: ...


def capacity(world: object, default: int) -> int:
    """Returns how many plays a world can hold at once; `default` where it does not say."""
    return world.capacity if isinstance(world, HasCapacity) else default


@runtime_checkable
class HasSeats(Protocol):
    """A world with several seats, by name. The policy plays in each of them, and is trained on what each does."""

    @property
    def seats(self) -> Sequence[str]: ...


@runtime_checkable
class HasLowestReward(Protocol):
    """A world that says which reward an episode ends with that the agent's own action broke; -1 in others."""

    @property
    def lowest_reward(self) -> float: ...


@runtime_checkable
class HasWorlds(Protocol):
    """A world that is made of several; `world_of` returns the one that a task belongs to."""

    @property
    def worlds(self) -> tuple[EnvFamily, ...]: ...
    def world_of(self, task: Task) -> EnvFamily: ...


@runtime_checkable
class HasRisks(Protocol):
    """A world that knows which of its protections are missing on this machine: `risks` returns a sentence for each.
    Commands print them before they play."""

    def risks(self) -> Sequence[str]: ...


@runtime_checkable
class Unverified(Protocol):
    """A component whose source nobody has read. `unverified` says what could be read instead, for the menu of methods
    and for whoever trains with it."""

    @property
    def unverified(self) -> str: ...


@runtime_checkable
class Forgets(Protocol):
    """A sampler that can drop whatever it keeps between samples.

    After `forget` the next samples do not depend, not even in their last bits, on what was sampled before.
    """

    async def forget(self) -> None: ...


@runtime_checkable
class Measured(Protocol):
    """A part that has metrics of its own: `metrics` returns them by name, for the time since it was last called."""

    def metrics(self) -> Mapping[str, float]: ...


@runtime_checkable
class ForkableSeat(Protocol):
    """A seat that can be copied: `fork` returns one that goes on by itself from the same turns."""

    def fork(self) -> Seat: ...


@runtime_checkable
class ReadsCritic(Protocol):
    """A stream that says whether it reads the critic's values."""

    @property
    def critic(self) -> bool: ...


@runtime_checkable
class Learns(Protocol):
    """A stream with a model of its own, which `learn` trains on each step, after the step's streams were computed.

    `learn` returns metrics. The model's state is copied into the stream of the next stage that has the same config.
    """

    async def learn(self, context: StepContext) -> Mapping[str, float]: ...


@runtime_checkable
class ReleasesResources(Protocol):
    """A stream that gives its resources back when its last stage has ended."""

    def close(self) -> None: ...


@runtime_checkable
class ReadsTaskData(Protocol):
    """A stream that reads keys of `Task.data`. The first task of each world is looked at before a run; the others are
    assumed to have the same keys."""

    @property
    def task_data(self) -> frozenset[str]: ...


def reads_critic(stream: object) -> bool:
    """Returns whether a stream reads the critic's values."""
    return isinstance(stream, ReadsCritic) and stream.critic


def task_data(stream: object) -> frozenset[str]:
    """Returns the keys of `Task.data` that a stream reads; mostly none."""
    return stream.task_data if isinstance(stream, ReadsTaskData) else frozenset()


@runtime_checkable
class NeedsOfEnv(Protocol):
    """An estimator that names what the plays of a world must offer, such as "state_key"."""

    @property
    def env_needs(self) -> frozenset[str]: ...


@runtime_checkable
class ProvidesTargets(Protocol):
    """An estimator whose credit holds more than advantages: "targets", where it has those of a critic."""

    @property
    def provides(self) -> frozenset[str]: ...


@runtime_checkable
class HasMinGroupSize(Protocol):
    """An estimator that learns nothing from groups of fewer episodes: their credit is zero."""

    @property
    def min_group_size(self) -> int: ...


@runtime_checkable
class HasGroupRelative(Protocol):
    """An estimator that says whether adding a constant to all rewards of a group leaves its credit unchanged, which
    `sojourn check` then tests."""

    @property
    def group_relative(self) -> bool: ...


def env_needs(estimator: object) -> frozenset[str]:
    """Returns what the plays of a world must offer for an estimator; mostly nothing."""
    return estimator.env_needs if isinstance(estimator, NeedsOfEnv) else frozenset()


def provided(estimator: object) -> frozenset[str]:
    """Returns what the credit of an estimator holds besides advantages; mostly nothing."""
    return estimator.provides if isinstance(estimator, ProvidesTargets) else frozenset()


def min_group_size(estimator: object) -> int:
    """Returns how many episodes a group must have for an estimator; mostly one."""
    return estimator.min_group_size if isinstance(estimator, HasMinGroupSize) else 1


@runtime_checkable
class HasColumns(Protocol):
    """A loss that computes per-token values (N,) from the step's whole batch, before it is cut into minibatches, such
    as a mask of extreme tokens. It finds them among the streams, under the same names."""

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]: ...


@runtime_checkable
class Chooses(Protocol):
    """A loss that selects among the tokens of each minibatch, by the present model's log-probabilities (N,).

    `choose` returns per-token values, which the loss finds among the streams. It is called only where `chooses` says
    so, as it costs a pass without gradients for each minibatch.
    """

    @property
    def chooses(self) -> bool: ...
    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]: ...


VALID_FOR = frozenset({"lag", "updates"})  # what a loss is valid for that does not say


@runtime_checkable
class HasValidFor(Protocol):
    """A loss that names the off-policy data that it handles correctly; the default is `VALID_FOR`.

    These may be "lag" (tokens of older weights, or of other ones), "updates" (several of them on one step's tokens) and
    "unsampled" (tokens that no weights sampled, so without log-probabilities).
    """

    @property
    def valid_for(self) -> frozenset[str]: ...


def valid_for(loss: object) -> frozenset[str]:
    """Returns the off-policy data that a loss handles correctly."""
    return loss.valid_for if isinstance(loss, HasValidFor) else VALID_FOR


@runtime_checkable
class DividesGradient(Protocol):
    """A loss that divides the policy's gradient by a number that follows from gradients of further objectives.

    `further_objectives` names them, none where nothing is divided; `objective` returns one of them per token (n,), with
    gradient; `divisor` is given the norm of the gradient of each over the whole update.
    """

    @property
    def further_objectives(self) -> Sequence[str]: ...
    def objective(self, name: str, out: PassOutput, batch: SelectedTokens) -> torch.Tensor: ...
    def divisor(self, norms: Mapping[str, float]) -> float: ...


@runtime_checkable
class Identifies(Protocol):
    """A backend that says exactly which weights it opens."""

    def identities(self, model: Any, critic: Any) -> Mapping[str, str]:
        """Returns the commit, version or digest of each model by its role ("policy", "critic"); empty while it is
        not here."""
        ...


@runtime_checkable
class Copies(Protocol):
    """A trainer that can be copied, for a model that learns beside the policy.

    The copy trains weights of its own, which begin as the present ones and are its reference if asked for. Its state
    holds all of them; its `publish` reaches no sampler.
    """

    def copy(self, optim: Any, *, reference: bool) -> Trainer: ...


@runtime_checkable
class HasHiddenStates(Protocol):
    """A trainer that returns the present weights' last hidden states, which some streams read."""

    async def hidden_states(self, batch: Batch, places: IntArray) -> FloatArray:
        """Returns those after the tokens of a batch at these places: (P, H), in fp32, without a gradient."""
        ...


@runtime_checkable
class Sized(Protocol):
    """A group source whose groups all have `size` episodes."""

    @property
    def size(self) -> int: ...


@runtime_checkable
class Lags(Protocol):
    """A group source whose groups were sampled by weights of at most `max_lag` steps before."""

    @property
    def max_lag(self) -> int: ...


def group_size(source: object) -> int | None:
    """Returns how many episodes each group of a source has; None where that differs."""
    return source.size if isinstance(source, Sized) else None


def max_lag(source: object) -> int:
    """Returns the `max_lag` of a source; 0 where it has none."""
    return source.max_lag if isinstance(source, Lags) else 0


@runtime_checkable
class Checks(Protocol):
    """A group source that is asked before a run begins, when its world is open.

    `check` raises `ConfigError` where the stage cannot be given such groups.
    """

    async def check(self, stage: Any) -> None: ...


@runtime_checkable
class HasMaxContext(Protocol):
    """A backend that says the longest context in tokens before it opens a model."""

    @property
    def max_context(self) -> int: ...


@runtime_checkable
class HasSlowdowns(Protocol):
    """A backend that knows what this machine makes it compute more slowly than it could, in whole sentences; none where
    nothing does. Commands print them before they open a model."""

    def slowdowns(self) -> Sequence[str]: ...


@runtime_checkable
class BindsRenderer(Protocol):
    """A backend that binds a renderer's config to a model's tokenizer without opening the model; it gives None where
    that is not on this machine yet."""

    def bind_renderer(self, model: Any, renderer: Any) -> Renderer | None: ...


@runtime_checkable
class HasNote(Protocol):
    """A renderer that says in a sentence which format it writes, and why; empty where there is nothing to say."""

    @property
    def note(self) -> str: ...


@runtime_checkable
class HasPassColumns(Protocol):
    """A backend that names what its trainer's passes can give for each token beside log-probabilities and entropy."""

    @property
    def pass_columns(self) -> frozenset[str]: ...


class ExportedModel(NamedTuple):
    """What a backend says of a model that it wrote: the base, its licence (an SPDX identifier, or "unknown"), the
    architecture, the number of parameters. `use` is a program of a few lines that loads it in the current folder."""

    base: str
    licence: str
    architecture: str
    parameters: int
    use: str


@runtime_checkable
class ExportsModels(Protocol):
    """A backend that writes the policy in formats of other programs.

    `model_formats` gives a sentence for each format. `export_model` writes the model with these weights of a checkpoint
    (None: those that a run begins with) into an empty folder; `dtype` is "fp32" or "bf16".
    """

    @property
    def model_formats(self) -> Mapping[str, str]: ...
    def export_model(
        self, model: Any, renderer: RendererConfig, seed: int, weights: Path | None, format: str, dtype: str, out: Path
    ) -> ExportedModel: ...
