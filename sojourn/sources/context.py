"""What a group source is given: the parts of a run that it uses, and the stage that it serves."""

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
    """The parts of a run that a group source may use; `params` are the stage's sampling parameters."""

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
    """Holds what `check` of a group source gets about a stage before the run begins, when the world is open."""

    name: str
    env: EnvFamily
    limits: Limits
    params: SamplingParams
    estimator: Estimator
    losses: Sequence[Loss]
