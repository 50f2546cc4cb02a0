"""What backends, trainers and samplers may offer besides their roles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from sojourn.ability import Ability
from sojourn.protocols import EnvFamily, Opened, Renderer, RendererConfig, Sampler, Trainer
from sojourn.types import Batch, FloatArray, IntArray, Prompt, Sample, SamplingParams, Trajectory

if TYPE_CHECKING:
    from sojourn.models.prompt_scorer import PromptScorer
    from sojourn.models.spec import Critic, Model
    from sojourn.optim import Optim
    from sojourn.timeline import Timeline


class ValueModel(Protocol):
    """The critic, as it is asked while plays go on.

    `value` returns the return that it expects after a prompt, where a seat is to act; `values` those that it expects
    before each turn of a trajectory.
    """

    async def value(self, prompt: Prompt) -> float: ...
    async def values(self, trajectory: Trajectory) -> list[float]: ...


@runtime_checkable
class AsksCritic(Ability, Protocol):
    """An agent, a branching rule or a source of groups that says whether it asks the critic while plays go on."""

    @property
    def asks_critic(self) -> bool: ...


def asks_critic(component: object) -> bool:
    """Returns whether a component asks the critic while plays go on; mostly not."""
    return isinstance(component, AsksCritic) and component.asks_critic


@runtime_checkable
class Forgets(Ability, Protocol):
    """A sampler that can drop whatever it keeps between samples.

    After `forget` the next samples do not depend, not even in their last bits, on what was sampled before.
    """

    async def forget(self) -> None: ...


Tell = Callable[[Sequence[int]], None]


@runtime_checkable
class TellsTokens(Ability, Protocol):
    """A sampler that tells the tokens of a sample while it draws them.

    `sample_telling` returns what `sample` returns, to the bit. It calls `tell` on the event loop with new tokens as
    soon as they are drawn, the last of them before it returns; together they are the tokens of the sample in their
    order. A sample without any drawn token, as of a single choice, is not told. What `tell` raises changes no sample.
    """

    async def sample_telling(self, prompt: Prompt, params: SamplingParams, tell: Tell) -> Sample: ...


async def sample_telling(sampler: Sampler, prompt: Prompt, params: SamplingParams, tell: Tell | None) -> Sample:
    """Samples, and tells the tokens while they are drawn if the sampler can; else nothing is told."""
    if tell is not None and isinstance(sampler, TellsTokens):
        return await sampler.sample_telling(prompt, params, tell)
    return await sampler.sample(prompt, params)


@runtime_checkable
class AllowsOlder(Ability, Protocol):
    """A sampler that can answer by older weights while newer ones are on their way to it.

    `since_now` returns a sampler for what begins now, which may be answered by the weights that are the newest now, and
    by all that come after them.
    """

    def since_now(self) -> Sampler: ...


def since_now(sampler: Sampler) -> Sampler:
    """Returns a sampler for what begins now: one that may be answered by older weights, where it has such."""
    return sampler.since_now() if isinstance(sampler, AllowsOlder) else sampler


@runtime_checkable
class BoundsTurns(Ability, Protocol):
    """A sampler of a single play that says how many turns the play may take, if that is fewer than `limits.turns`."""

    @property
    def max_turns(self) -> int: ...


def max_turns(sampler: object, turns: int) -> int:
    """Returns how many turns a play may take: `turns`, or fewer where its sampler says so."""
    return min(sampler.max_turns, turns) if isinstance(sampler, BoundsTurns) else turns


@runtime_checkable
class DrawsAll(Ability, Protocol):
    """A sampler of one play that draws every sample from the engine, so that a search may ask it for those of actions
    that are only tried. Others, such as an expert's, have one for each turn."""

    @property
    def draws_all(self) -> bool: ...


@runtime_checkable
class Measured(Ability, Protocol):
    """A part that has metrics of its own: `metrics` returns them by name, for the time since it was last called."""

    def metrics(self) -> Mapping[str, float]: ...


@runtime_checkable
class Identifies(Ability, Protocol):
    """A backend that says exactly which weights it opens."""

    def identities(self, model: Model, critic: Critic | None) -> Mapping[str, str]:
        """Returns the commit, version or digest of each model by its role ("policy", "critic"); empty while it is
        not here."""
        ...


@runtime_checkable
class Copies(Ability, Protocol):
    """A trainer that can be copied, for a model that learns beside the policy.

    The copy trains weights of its own, which begin as the present ones and are its reference if asked for. Its state
    holds all of them; its `publish` reaches no sampler.
    """

    def copy(self, optim: Optim, *, reference: bool) -> Trainer: ...


@runtime_checkable
class HasHiddenStates(Ability, Protocol):
    """A trainer that returns last hidden states, which some streams read."""

    async def hidden_states(
        self, batch: Batch, indices: IntArray, *, reference: bool = False, layer: int | None = None
    ) -> FloatArray:
        """Returns those after the tokens of a batch at these indices, of the present weights or of those that the stage
        began with: (P, H), in fp32, without a gradient. With `layer`, they are the residual stream after that layer (0:
        the first), before the last norm."""
        ...


@runtime_checkable
class ScoresTokens(Ability, Protocol):
    """A trainer beside which further models are open, which score tokens that the policy sampled.

    A model has its name of `[models]`; "policy" is the present one, "reference" that of the stage's beginning.
    """

    def context_of(self, model: str) -> int:
        """Returns how many tokens a model can read."""
        ...

    async def ask_models(self, batches: Mapping[str, Batch]) -> FloatArray:
        """Returns the log-probability of each token that carries weight, by the model of whose batch it does, and 0 for
        the others: (N,). The batches, by the names of the models, differ in their weights alone, and each token carries
        weight in one of them. What they say of the distributions in these places, which some losses read, is kept until
        models are asked again."""
        ...


@runtime_checkable
class OpensModels(Ability, Protocol):
    """A backend that opens frozen models of the policy's vocabulary beside the policy."""

    def check_model(self, name: str, model: Model, policy: Model) -> None:
        """Raises `ModelError` where the model cannot be found, or where it is known, without loading it, to have
        another vocabulary than the policy."""
        ...

    def open_model(
        self, name: str, model: Model, weights: Path | None, seed: int, policy: Model, trainer: Trainer
    ) -> None:
        """Opens a model, with the weights of a run's checkpoint where they are given, so that the trainer may ask it;
        the trainer then closes it too."""
        ...


@runtime_checkable
class OpensPlayers(Ability, Protocol):
    """A backend that opens models of the policy's vocabulary that sample beside the policy, frozen or trained, too."""

    def check_model(self, name: str, model: Model, policy: Model) -> None:
        """Does as that of `OpensModels`."""
        ...

    async def open_player(
        self, name: str, model: Model, weights: Path | None, seed: int, policy: Model, renderer: Renderer
    ) -> Sampler:
        """Opens a model, with the weights of a run's checkpoint where they are given; whoever asked for it closes it.
        Its samples end as the policy's do, as the renderer says."""
        ...

    def open_learner(
        self, name: str, model: Model, seed: int, policy: Model, renderer: Renderer, timeline: Timeline
    ) -> Opened:
        """Opens a model that is trained, too, beside the policy."""
        ...


@runtime_checkable
class OpensTurnModels(Ability, Protocol):
    """A backend that opens frozen models with a value head, of the policy's vocabulary, beside the policy."""

    def open_turn_model(
        self, name: str, model: Model, critic: Critic, weights: Path, seed: int, policy: Model, max_context: int
    ) -> Trainer:
        """Opens a model and its critic with the weights of a run's checkpoint, for passes alone; whoever asked for it
        closes it. Raises `ModelError` where it cannot read what the policy does, contexts of `max_context` tokens."""
        ...


class FurtherModel(NamedTuple):
    """Says what a run has open of one of its further models at most: `samplers`, of which each snapshot of a pool has
    its own, and `trainers`, which train it, or compute its values for a reward. `model` is None where it has not been
    looked for."""

    samplers: int
    trainers: int
    model: Model | None = None


@runtime_checkable
class PlacesModels(Ability, Protocol):
    """A backend that opens further models in processes of their own; it is given all that have weights here, by their
    names."""

    def check_models(self, models: Mapping[str, FurtherModel]) -> None:
        """Raises `ConfigError` where the backend has config for processes that none of the models has."""
        ...

    def plan_models(self, models: Mapping[str, FurtherModel]) -> Sequence[str]:
        """Returns sentences on what the models take, as `HasPlan.plan` does for the policy."""
        ...

    def reserve_models(self, models: Mapping[str, FurtherModel]) -> None:
        """Reserves room for the models. Call it once, after `open`, before any of them is opened. Raises `ConfigError`
        where there is no room."""
        ...


@runtime_checkable
class SharesBase(Ability, Protocol):
    """A backend whose sampler samples several adapters over one base, beside each other, if `shares_base` says so."""

    @property
    def shares_base(self) -> bool: ...

    def share_base(self, model: Model, opened: Opened) -> Callable[[str, Path], Awaitable[Sampler]]:
        """Makes an open policy, which trains adapters, publish them alone, so that its sampler's base stays.

        Returns what opens the weights of a checkpoint of the policy, under a name, as adapters over that base; whoever
        asks for them closes them. Call it before anything is published.
        """
        ...


@runtime_checkable
class Steers(Ability, Protocol):
    """A backend that says whether the policy's sampler adds what `SamplingParams.steering` says; others cannot."""

    @property
    def steers(self) -> bool: ...


@runtime_checkable
class OpensEndpoints(Ability, Protocol):
    """A backend whose trainer asks models behind servers, too, as it asks those that the backend opens."""

    async def open_endpoint(self, name: str, scorer: PromptScorer, policy: Model, trainer: Trainer) -> None:
        """Lets the trainer ask a server. Raises `ModelError` where its model has another vocabulary than the policy,
        reads shorter contexts, or gives fewer tokens than it is asked for."""
        ...


@runtime_checkable
class PlacesWorlds(Ability, Protocol):
    """A backend that has plays in other processes, or on other machines.

    `place` returns the family with the same tasks whose plays are there, once the backend is open. It is opened and
    closed in place of the family that it is given.
    """

    def place(self, family: EnvFamily) -> EnvFamily: ...


@runtime_checkable
class HasMaxContext(Ability, Protocol):
    """A backend that says the longest context in tokens before it opens a model."""

    @property
    def max_context(self) -> int: ...


@runtime_checkable
class HasSlowdowns(Ability, Protocol):
    """A backend that knows what this machine, or the kind of a model, makes it compute more slowly than it could, in
    whole sentences; none where nothing does. Commands print them before they open a model."""

    def slowdowns(self, model: Model) -> Sequence[str]: ...


@runtime_checkable
class Restarts(Ability, Protocol):
    """A backend whose trainer may lose a process (`RankError`): a run then goes on from its last checkpoint by itself,
    up to `restarts` times."""

    @property
    def restarts(self) -> int: ...


@runtime_checkable
class HasPlan(Ability, Protocol):
    """A backend that says where the parts of a run go and what they take, in whole sentences, without any of them.
    `--dry` prints it."""

    def plan(self, model: Model, critic: Critic | None = None) -> Sequence[str]: ...


@runtime_checkable
class BindsRenderer(Ability, Protocol):
    """A backend that binds a renderer's config to a model's tokenizer without opening the model; it gives None where
    that is not on this machine yet."""

    def bind_renderer(self, model: Model, renderer: RendererConfig) -> Renderer | None: ...


@runtime_checkable
class HasNote(Ability, Protocol):
    """A renderer that says in a sentence which format it writes, and why; empty where there is nothing to say."""

    @property
    def note(self) -> str: ...


@runtime_checkable
class HasChatTemplate(Ability, Protocol):
    """A renderer whose format can be written as a chat template, a Jinja program, which is exported with a model that
    was trained in it. With any other renderer the model's own is exported."""

    @property
    def chat_template(self) -> str: ...


@runtime_checkable
class HasPassColumns(Ability, Protocol):
    """A backend that names what its trainer's passes can give for each token beside log-probabilities and entropy."""

    @property
    def pass_columns(self) -> frozenset[str]: ...


@runtime_checkable
class ChecksWeights(Ability, Protocol):
    """A backend that can tell, without loading a model, whether the weights of a checkpoint are of it: `check_weights`
    raises where they are not."""

    def check_weights(self, model: Model, weights: Path) -> None: ...
