"""What streams, estimators, losses and group sources may offer besides their roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from sojourn.protocols import PassOutput, SelectedTokens, StepContext
from sojourn.types import Batch, FloatArray

if TYPE_CHECKING:
    import torch


@runtime_checkable
class Unverified(Protocol):
    """A component whose source nobody has read. `unverified` says what could be read instead, for the menu of methods
    and for whoever trains with it."""

    @property
    def unverified(self) -> str: ...


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
