"""What a group source works with: the parts of a run that it draws on, and the stage that it is asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sojourn.protocols import Curriculum, EnvFamily, Estimator, Loss, Renderer
from sojourn.rewards.reward_cache import RewardCache
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Runner
from sojourn.types import SamplingParams


class SourceContext(Protocol):
    """The parts of a run that a group source may draw on; `params` is how a stage samples."""

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
    """What a group source is told of a stage before a run begins, when the world is open."""

    name: str
    env: EnvFamily
    limits: Limits
    params: SamplingParams
    estimator: Estimator
    losses: Sequence[Loss]
