"""Defines what a group source gets: the components of a run that it uses, and the stage that it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sojourn.abilities import valid_for
from sojourn.errors import ConfigError
from sojourn.protocols import Agent, Curriculum, EnvFamily, Estimator, Loss, Renderer
from sojourn.rewards.reward_cache import RewardCache
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Runner
from sojourn.types import Group, SamplingParams


class SourceContext(Protocol):
    """The components of a run that a group source may use; `params` are the stage's sampling parameters."""

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


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """Describes a stage to the `check` of its group source, before the run begins, when the world is open."""

    name: str
    env: EnvFamily
    split: str  # of the tasks that the curriculum draws
    agent: Agent
    limits: Limits
    params: SamplingParams
    estimator: Estimator
    losses: Sequence[Loss]


def unsampled(group: Group) -> bool:
    """Returns whether any turn that would be trained was not sampled by a model, as in a demonstration."""
    turns = (turn for t in group.trajectories if t.trainable for turn in t.turns)
    return any(turn.sample.versions.oldest < 0 for turn in turns)


def require_imitation(stage: StageContext, samples: str) -> None:
    """Raises `ConfigError` if the stage needs the sampler's log-probabilities, which the turns of `samples` do not
    have.

    A source of turns that no model sampled calls this in its `check`: their log-probabilities are 0, so a ratio to them
    would be the policy's probability itself.
    """
    needing = [type(loss).__name__ for loss in stage.losses if "unsampled" not in valid_for(loss)]
    needing += [type(stage.estimator).__name__] * ("ref_logprobs" in stage.estimator.needs)
    if needing:
        raise ConfigError(
            f"stage '{stage.name}': {needing[0]} needs the sampler's log-probabilities, which {samples} does not have "
            "for all its turns: imitate them instead, with losses = [{name = 'nll'}] and estimator = {name = "
            "'constant'}"
        )
