"""Defines what a group source gets: the components of a run that it uses, and the stage that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from sojourn.abilities import Mixes, applied, origin_of, parts_of, valid_for
from sojourn.errors import ActionError, ConfigError, InfrastructureError, failure_and_place
from sojourn.protocols import Agent, Curriculum, EnvFamily, Estimator, Loss, Renderer, Reward, SourceConfig
from sojourn.record.episodes.store import EpisodeStore
from sojourn.rewards.native import Native
from sojourn.rewards.reward_cache import RewardCache
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Runner
from sojourn.rollout.world import seats_of_world, worlds_of
from sojourn.sources.play_abilities import PlayAbilities
from sojourn.types import Group, Message, SamplingParams, Turn


class SourceContext(Protocol):
    """The components of a run that a group source may use; `params` are the stage's sampling parameters, and `episodes`
    has what the run recorded so far."""

    @property
    def runner(self) -> Runner: ...
    @property
    def curriculum(self) -> Curriculum: ...
    @property
    def rewards(self) -> RewardCache: ...
    @property
    def renderer(self) -> Renderer: ...
    @property
    def params(self) -> SamplingParams: ...
    @property
    def episodes(self) -> EpisodeStore: ...


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """Describes a stage to the `check` of its group source, before the run begins, when the world is open."""

    name: str
    groups: SourceConfig[SourceContext]
    env: EnvFamily
    plays: PlayAbilities  # what the environments of its tasks can do
    split: str  # of the tasks that the curriculum draws
    agent: Agent
    limits: Limits
    params: SamplingParams
    estimator: Estimator
    losses: Sequence[Loss]
    renderer: Renderer | None = None  # of the model; None where that is not on this machine yet
    earlier: Mapping[str, SourceConfig[SourceContext]] = field(default_factory=dict)  # of the stages before, by name
    reward: Reward = field(default_factory=Native)


def require_played(groups: Sequence[Group], step: int) -> None:
    """Raises `InfrastructureError` where all episodes of a step failed."""
    episodes = [episode for group in groups for episode in group.episodes]
    if all(episode.error is not None for episode in episodes):
        cause = failure_and_place(episodes[-1].error, episodes[-1].traceback)
        raise InfrastructureError(f"all {len(episodes)} episodes of step {step} failed; the last cause: {cause}")


def count_unjudged(runner: Runner, played: Group, scored: Group) -> None:
    """Counts the episodes of a group that failed when they were to be scored."""
    for before, episode in zip(played.episodes, scored.episodes, strict=True):
        if episode.error != before.error:
            runner.count(episode, again=True)


def require_one_seat(
    stage: StageContext, source: str, remedy: str, does: str = "plays the episodes of one seat again"
) -> None:
    """Raises `ConfigError` for a world with several seats, where a source `does` something that is for one."""
    seats = next((seats for world in worlds_of(stage.env) if len(seats := seats_of_world(world)) > 1), None)
    if seats is not None:
        raise ConfigError(
            f"stage '{stage.name}': {source} {does}, but the world has the seats {', '.join(seats)}: {remedy}"
        )


def require_policy_plays(stage: StageContext, source: str, kind: type) -> None:
    """Raises `ConfigError` where a `source` that goes on from what the policy played finds nothing in the stage, as
    that plays in another way, such as with an expert's help; and where two of its `kind` would choose the same."""
    played = [origin_of(part) for part in parts_of(stage.groups) if part.live]
    if "policy" not in played:
        raise ConfigError(
            f"stage '{stage.name}': {source} goes on from what the policy played by itself, but the groups of this "
            f"stage are of {' and '.join(played)}: play them by slots, or leave it out"
        )
    if sum(isinstance(part, kind) for part in parts_of(stage.groups)) > 1:
        raise ConfigError(
            f"stage '{stage.name}': two parts of groups are {source}, which would choose the same of what was played: "
            "keep one of them, and give it more width"
        )


def unsampled(group: Group) -> bool:
    """Returns whether any turn that would be trained was not sampled by a model, as in a demonstration."""
    turns = (turn for t in group.trajectories if t.trainable for turn in t.turns)
    return any(turn.sample.versions.oldest < 0 for turn in turns)


def require_imitation(stage: StageContext, samples: str, origin: str) -> None:
    """Raises `ConfigError` if what the stage applies to groups of an origin needs the sampler's log-probabilities,
    which the turns of `samples` do not have.

    A source of turns that no model sampled calls this in its `check`: their log-probabilities are 0, so a ratio to them
    would be the policy's probability itself.
    """
    losses, [estimator] = applied(stage.losses, origin), applied([stage.estimator], origin)
    needing = [type(loss).__name__ for loss in losses if "unsampled" not in valid_for(loss)]
    needing += [type(estimator).__name__] * ("ref_logprobs" in cast(Estimator, estimator).needs)
    if needing:
        beside = (
            f": beside other groups, by losses = [{{name = 'of_origin', origins = ['{origin}'], base = {{name = 'nll'}}"
            f"}}, ...] and estimator = {{name = 'by_origin', of = {{{origin} = {{name = 'constant'}}}}}}"
        )
        raise ConfigError(
            f"stage '{stage.name}': {needing[0]} needs the sampler's log-probabilities, which {samples} does not have "
            "for all its turns: imitate them instead, with losses = [{name = 'nll'}] and estimator = {name = "
            f"'constant'}}{beside if isinstance(stage.groups, Mixes) else ''}"
        )


def misread(renderer: Renderer, group: Group) -> str:
    """Returns a sentence if the model reads a recorded turn otherwise than it was said, as tokens of another vocabulary
    or format mean something else to it; the first turn of a group stands for all."""
    said = (turn for t in group.trajectories for turn in t.turns if turn.message is not None)
    turn = next(said, None)
    if turn is None or (read := _read(renderer, turn)) == turn.message:
        return ""
    return (
        f"the model reads the tokens of an episode as {_short(read)}, but its message is {_short(turn.message)}, so "
        "another model sampled them"
    )


def _read(renderer: Renderer, turn: Turn) -> Message | None:
    try:
        return renderer.parse(turn.sample.tokens.tolist())
    except (ActionError, IndexError, KeyError, OverflowError, TypeError, ValueError):
        return None


def _short(message: Message | None) -> str:
    return "nothing" if message is None else ascii(message.text or [call.name for call in message.calls])[:60]
