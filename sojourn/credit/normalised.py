"""Returns normalised by running moments, for another estimator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from sojourn.config.fields import Kind, Range
from sojourn.credit.gae import GAE
from sojourn.credit.relative import trajectory_returns
from sojourn.credit.wrapped import Wrapped
from sojourn.finite import tolerance
from sojourn.protocols import Estimator
from sojourn.types import Credit, Group, Score, Streams


@dataclass
class Moments:
    """Running mean and variance of all returns so far."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # summed squared differences from the mean

    def add(self, values: Sequence[float]) -> None:
        for value in values:
            self.count += 1
            difference = value - self.mean
            self.mean += difference / self.count
            self.squares += difference * (value - self.mean)

    @property
    def deviation(self) -> float:
        """Returns the standard deviation of the sample; 0 for fewer than two values."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0


@dataclass(frozen=True, kw_only=True)
class Normalised(Wrapped):
    """Another estimator, for rewards whose returns are normalised to mean 0 and standard deviation 1 over all steps so
    far, this one included, and then clipped to [-`clip`, `clip`] (reward normalisation and clipping of PPO-max: Zheng
    et al. 2023, arXiv:2307.04964), without the pretraining text that PPO-max mixes into its batches.

    The moments and the clip are those of the authors' code with `use_reward_norm` and `use_reward_clip`; the scripts
    that they published only divide by the standard deviation. The paper has one reward per answer. Here the rewards of
    turns are divided by the standard deviation, and whatever else changes the return is added at its last turn.
    """

    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=GAE)
    clip: Annotated[float, Range(above=0)] = 10.0
    epsilon: Annotated[float, Range(above=0)] = 1e-6
    _moments: Moments = field(default_factory=Moments, init=False, repr=False, compare=False)

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        self._moments.add([float(total) for of_group in scores for total in trajectory_returns(of_group)])
        return self.base(groups, [[self._normalised(score) for score in of_group] for of_group in scores], streams)

    def _normalised(self, score: Score) -> Score:
        deviation = self._moments.deviation
        scale = 1 / (deviation + self.epsilon) if deviation > tolerance([self._moments.mean]) else 0.0
        turns = score.turns.astype(np.float64) * scale
        clipped = min(max((score.total - self._moments.mean) * scale, -self.clip), self.clip)
        turns[-1:] += clipped - turns.sum()
        outcome = score.result if len(turns) else clipped  # a seat that never acted has its return there
        return replace(score, turns=turns.astype(np.float32), outcome=outcome)

    def state(self) -> Mapping[str, Any]:
        return {**super().state(), **vars(self._moments)}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        for name in vars(self._moments):
            setattr(self._moments, name, state[name])
