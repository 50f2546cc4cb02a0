"""The number that a trained reward model gives to an episode as the reward."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np

from sojourn.abilities import TurnModel
from sojourn.composite import HasBases
from sojourn.config.fields import NONBLANK, Kind
from sojourn.errors import ConfigError
from sojourn.protocols import Reward
from sojourn.rewards.native import Native
from sojourn.types import FloatArray, Group, Score


def _nothing() -> Native:
    return Native(scale=0.0)


@dataclass(frozen=True, kw_only=True)
class RewardModel(HasBases):
    """Scores each trajectory by a reward model, that is a model with a value head, times `coef`, and adds the reward
    `base`.

    `model` is one of `[models]` whose `weights` are those of a run that trained a critic by the loss
    `binary_cross_entropy` or `bradley_terry`: it is frozen. Or it is "critic", the run's own, by its present weights,
    which learns beside the policy from the same episodes; the labels are then those of the world.

    With `turns = "last"` the reward is at the last turn, as an outcome reward model gives it. With "each" every turn
    has its own, as a process reward model gives it, and with "change" how far it is above that of the turn before, so
    that the rewards of the turns add up to that of the last (the shaping of Ng, Harada and Russell 1999, with the model
    as the potential, which is 0 before the first turn). The `output` is the "probability" of a success, the sigmoid of
    the model's value, for a model that was trained by labels; or the "value" itself, for one that was trained by pairs,
    or a critic that learned returns.

    The model reads the tokens that the policy sampled and was shown, and nothing is tokenized again, so it has the
    policy's vocabulary. It reads a turn up to the token that ends it; what the world answers to the last turn it does
    not see. A trajectory without sampled tokens has the reward of `base` alone. Episodes that failed are not scored.
    """

    base: Annotated[Reward, Kind("reward")] = field(default_factory=_nothing)
    model: Annotated[str, NONBLANK] = "critic"
    turns: Literal["last", "each", "change"] = "last"
    output: Literal["probability", "value"] = "probability"
    coef: float = 1.0

    @property
    def value_model(self) -> str:
        return self.model

    def bind_turn_model(self, model: TurnModel) -> BoundRewardModel:
        return BoundRewardModel(self.base, self, model)

    async def __call__(self, group: Group) -> list[Score]:
        raise ConfigError(
            f"the reward reward_model reads the model '{self.model}', which a run has open: score with a run, or "
            "bind_turn_model"
        )

    def rewards(self, values: list[float]) -> FloatArray:
        """Returns the reward of each turn (T,) from the values of the model, without `coef`. A turn without tokens has
        no value, and the reward 0."""
        known = np.array([turn for turn, value in enumerate(values) if not math.isnan(value)], dtype=np.int64)
        numbers = np.array([self._output(values[turn]) for turn in known])
        rewards = np.zeros(len(values))
        if self.turns == "last":
            rewards[-1] = numbers[-1]
        else:
            rewards[known] = numbers if self.turns == "each" else np.diff(numbers, prepend=0.0)
        return rewards.astype(np.float32)

    def _output(self, value: float) -> float:
        return value if self.output == "value" else float(np.exp(-np.logaddexp(0, -value)))


@dataclass(frozen=True)
class BoundRewardModel(HasBases):
    """A reward model in a run, which has it open."""

    base: Reward
    config: RewardModel
    model: TurnModel

    async def __call__(self, group: Group) -> list[Score]:
        scores = await self.base(group)
        found = await self.model.ends(group)
        return [self._with(score, values) for score, values in zip(scores, found, strict=True)]

    def _with(self, score: Score, values: list[float]) -> Score:
        known = [value for value in values if not math.isnan(value)]
        if not known:
            return score
        rewards = self.config.coef * self.config.rewards(values)
        own = f"reward_model_{self.config.model}" if "reward_model" in score.parts else "reward_model"
        last = float(self.config.rewards(known[-1:]).sum())
        return replace(
            score,
            turns=(score.turns + rewards).astype(np.float32),
            parts={**score.parts, own: last},
            outcome=score.result + float(rewards.sum()),
        )
