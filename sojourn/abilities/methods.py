"""What streams, estimators, losses, curricula and rewards may offer besides their roles.

The list is long, but each ability is short and asked for by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from sojourn.abilities.asking import AsksForText, ReadsLikelihoods
from sojourn.ability import Ability
from sojourn.protocols import (
    Curriculum,
    CurriculumConfig,
    EnvFamily,
    PassOutput,
    Renderer,
    Reward,
    SelectedTokens,
    StepContext,
)
from sojourn.types import Batch, FloatArray, Group, Score, Task

if TYPE_CHECKING:
    import torch


@runtime_checkable
class Unverified(Ability, Protocol):
    """A component whose source nobody has read. `unverified` says what could be read instead, for the menu of methods
    and for whoever trains with it."""

    @property
    def unverified(self) -> str: ...


@runtime_checkable
class ReadsCritic(Ability, Protocol):
    """A stream that says whether it reads the critic's values."""

    @property
    def critic(self) -> bool: ...


@runtime_checkable
class AsksModels(Ability, Protocol):
    """A stream that asks further models, by their names of `[models]`; none where it asks those of the policy."""

    @property
    def models(self) -> frozenset[str]: ...


class TurnModel(Protocol):
    """A model with a value head, as rewards read it: `ends` returns its value of each turn of each trajectory of a
    group, where the turn ends; NaN for a turn without sampled tokens."""

    async def ends(self, group: Group) -> list[list[float]]: ...


@runtime_checkable
class BindsTurnModel(Ability, Protocol):
    """A reward that reads the values of a model with a value head: `value_model` is one of `[models]`, or "critic", the
    run's own. `bind_turn_model` returns the reward that reads it."""

    @property
    def value_model(self) -> str: ...
    def bind_turn_model(self, model: TurnModel) -> Reward: ...


@runtime_checkable
class AddsContext(Ability, Protocol):
    """A stream whose models read more than the policy: `added_tokens` says by how much each context grows."""

    @property
    def all_models(self) -> frozenset[str]: ...
    def added_tokens(self, renderer: Renderer) -> int: ...


@runtime_checkable
class NamesLabels(Ability, Protocol):
    """A stream that names worlds and tags of tasks, which some tasks of its stage must have."""

    @property
    def labels(self) -> frozenset[str]: ...


@runtime_checkable
class Learns(Ability, Protocol):
    """A stream with a model of its own, which `learn` trains on each step, after the step's streams were computed.

    `learn` returns metrics. The model's state is copied into the stream of the next stage that has the same config.
    """

    async def learn(self, context: StepContext) -> Mapping[str, float]: ...


@runtime_checkable
class Freezes(Ability, Protocol):
    """A stream that learns, unless it is `frozen`: then it keeps what it learned in the stage before. An equal stream
    may be frozen in one stage and learn in another."""

    @property
    def frozen(self) -> bool: ...


def frozen(stream: object) -> bool:
    """Returns whether a stream keeps what it learned in the stage before."""
    return isinstance(stream, Freezes) and stream.frozen


@runtime_checkable
class ReleasesResources(Ability, Protocol):
    """A stream that gives its resources back when its last stage has ended."""

    def close(self) -> None: ...


@runtime_checkable
class ReadsTaskData(Ability, Protocol):
    """A stream that reads keys of `Task.data`. The first task of each world is looked at before a run; the others are
    assumed to have the same keys."""

    @property
    def task_data(self) -> frozenset[str]: ...


@runtime_checkable
class NamesSeats(Ability, Protocol):
    """A reward or an estimator that treats some seats in their own way, by their names, an estimator also agents that
    the run's agent calls; a run refuses unknown ones."""

    @property
    def named_seats(self) -> frozenset[str]: ...


@runtime_checkable
class WritesWords(Ability, Protocol):
    """A reward that writes texts of some kinds into `Score.words`, such as "hint"; none where it is told not to."""

    @property
    def writes(self) -> frozenset[str]: ...


@runtime_checkable
class ReadsWords(Ability, Protocol):
    """A stream that reads texts of some kinds in `Score.words`: a run refuses it where no reward writes them."""

    @property
    def reads_words(self) -> frozenset[str]: ...


def reads_critic(stream: object) -> bool:
    """Returns whether a stream reads the critic's values."""
    return isinstance(stream, ReadsCritic) and stream.critic


def task_data(stream: object) -> frozenset[str]:
    """Returns the keys of `Task.data` that a stream reads; mostly none."""
    return stream.task_data if isinstance(stream, ReadsTaskData) else frozenset()


def asked_models(stream: object) -> frozenset[str]:
    """Returns the further models that a stream asks; mostly none."""
    return stream.models if isinstance(stream, AsksModels) else frozenset()


def likelihoods(component: object) -> frozenset[str]:
    """Returns the models whose probabilities of listed answers a component reads; mostly none."""
    return component.likelihoods if isinstance(component, ReadsLikelihoods) else frozenset()


def asked_for_text(component: object) -> frozenset[str]:
    """Returns the models that a component itself asks for text; mostly none."""
    return component.asks if isinstance(component, AsksForText) else frozenset()


def value_models(component: object) -> frozenset[str]:
    """Returns the models whose values a component itself reads; mostly none."""
    return frozenset({component.value_model}) if isinstance(component, BindsTurnModel) else frozenset()


@runtime_checkable
class NeedsOfEnv(Ability, Protocol):
    """An estimator or a source of groups that names what the plays of a world must offer, such as "state_key"."""

    @property
    def env_needs(self) -> frozenset[str]: ...


@runtime_checkable
class ProvidesTargets(Ability, Protocol):
    """An estimator whose credit holds more than advantages: "targets", where it has those of a critic."""

    @property
    def provides(self) -> frozenset[str]: ...


@runtime_checkable
class HasMinGroupSize(Ability, Protocol):
    """An estimator that learns nothing from groups of fewer episodes: their credit is zero."""

    @property
    def min_group_size(self) -> int: ...


@runtime_checkable
class HasGroupRelative(Ability, Protocol):
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
class HasColumns(Ability, Protocol):
    """A loss that computes per-token values (N,) from the step's whole batch, before it is cut into minibatches, such
    as a mask of extreme tokens; one with a mean of its own (`HasOwnMean`) also from each minibatch, as it is about to
    be trained. It finds them among the streams, under the same names."""

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]: ...


@runtime_checkable
class Chooses(Ability, Protocol):
    """A loss that selects among the tokens of each minibatch, by the present model's log-probabilities (N,).

    `choose` returns per-token values, which the loss finds among the streams. It is called only where `chooses` says
    so, as it costs a pass without gradients for each minibatch.
    """

    @property
    def chooses(self) -> bool: ...
    def choose(self, batch: Batch, logprobs: FloatArray) -> Mapping[str, FloatArray]: ...


@runtime_checkable
class Compares(Ability, Protocol):
    """A loss that says whether it compares the trajectories of a step with each other, which may then not be divided
    into minibatches."""

    @property
    def compares(self) -> bool: ...


@runtime_checkable
class ComparesWholeTrajectories(Ability, Protocol):
    """A loss, or a stream that a loss reads, that says whether its numbers are of whole trajectories, such as sums over
    all their tokens: then a turn that branched plays share is trained in each of them, as part of it, and not once."""

    @property
    def whole_trajectories(self) -> bool: ...


@runtime_checkable
class HasOwnMean(Ability, Protocol):
    """A loss that says whether it is a mean of its own, such as over pairs, whatever the weights of tokens are."""

    @property
    def own_mean(self) -> bool: ...


def columns_of(losses: Iterable[object], batch: Batch) -> dict[str, FloatArray]:
    """Returns the per-token values that losses compute from a batch, by their names."""
    columns = [loss.columns(batch) for loss in losses if isinstance(loss, HasColumns)]
    return {name: values for of_loss in columns for name, values in of_loss.items()}


VALID_FOR = frozenset({"lag", "updates"})  # what a loss is valid for that does not say


@runtime_checkable
class HasValidFor(Ability, Protocol):
    """A loss that names the off-policy data that it handles correctly; the default is `VALID_FOR`.

    These may be "lag" (tokens of older weights, or of other ones), "updates" (several of them on one step's tokens) and
    "unsampled" (tokens that no weights sampled, so without log-probabilities).
    """

    @property
    def valid_for(self) -> frozenset[str]: ...


def valid_for(loss: object) -> frozenset[str]:
    """Returns the off-policy data that a loss handles correctly."""
    return loss.valid_for if isinstance(loss, HasValidFor) else VALID_FOR


class Compared(NamedTuple):
    """The value of each of r rows, and its gradient by the policy's logits."""

    value: torch.Tensor  # (r,)
    gradient: torch.Tensor  # (r, V)


@runtime_checkable
class ComparesDistributions(Ability, Protocol):
    """A loss that compares the policy's whole distribution in the place of each token with that of the teacher whom the
    stream `teacher` asked.

    `compare` is given log-probabilities of both for some tokens, (r, V) each, without gradient. The loss finds the
    values for its n tokens, with gradient, in the column of the pass that `column` names.
    """

    @property
    def column(self) -> str: ...
    def compare(self, policy: torch.Tensor, teacher: torch.Tensor) -> Compared: ...


@runtime_checkable
class ComparesLikeliest(Ability, Protocol):
    """A loss that compares distributions also with a teacher that gives no more than its likeliest tokens.

    It tells `top_k` of them apart; at 0 it needs all. `compare_likeliest` is given the policy's log-probabilities
    (r, V), and the teacher's likeliest tokens and their log-probabilities (r, k), likeliest first; a token of -1 is
    none, and no row has only these.
    """

    @property
    def top_k(self) -> int: ...
    def compare_likeliest(self, policy: torch.Tensor, tokens: torch.Tensor, logprobs: torch.Tensor) -> Compared: ...


@runtime_checkable
class DividesGradient(Ability, Protocol):
    """A loss that divides the policy's gradient by a number that follows from gradients of further objectives.

    `further_objectives` names them, none where nothing is divided; `objective` returns one of them per token (n,), with
    gradient; `divisor` is given the norm of the gradient of each over the whole update.
    """

    @property
    def further_objectives(self) -> Sequence[str]: ...
    def objective(self, name: str, out: PassOutput, batch: SelectedTokens) -> torch.Tensor: ...
    def divisor(self, norms: Mapping[str, float]) -> float: ...


@runtime_checkable
class Observes(Ability, Protocol):
    """A curriculum, or a group source that keeps groups: it is told of all groups that were newly played for a step,
    redrawn and dropped ones included, with their scores, when the step was trained."""

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None: ...


@runtime_checkable
class ObservesEvaluations(Ability, Protocol):
    """A curriculum that is told of the groups of each evaluation, too, whose tasks are those of another split."""

    def observe_evaluation(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None: ...


@runtime_checkable
class BindsWorld(Ability, Protocol):
    """The config of a curriculum that makes tasks, for which it is bound to the world, too."""

    def bind_world(self, world: EnvFamily, tasks: Sequence[Task], seed: int) -> Curriculum: ...


def bound_curriculum(config: CurriculumConfig, world: EnvFamily, tasks: Sequence[Task], seed: int) -> Curriculum:
    """Returns the curriculum of a config, bound to the tasks of its split, and to their world where it wants that."""
    if isinstance(config, BindsWorld):
        return config.bind_world(world, tasks, seed)
    return config.bind(tasks, seed)
