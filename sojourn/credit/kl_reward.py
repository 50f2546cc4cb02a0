"""The KL penalty as part of the reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np

from sojourn.config.fields import Kind
from sojourn.credit.grpo import GRPO
from sojourn.credit.relative import Values
from sojourn.credit.wrapped import Wrapped
from sojourn.protocols import Estimator
from sojourn.types import Credit, FloatArray, Group, Score, Streams, Trajectory


@dataclass(frozen=True, kw_only=True)
class KLReward(Wrapped):
    """Another estimator, for rewards from which `coef` times an estimate of KL(sampler || reference), summed over the
    tokens of each turn, is subtracted (Stiennon et al. 2020, arXiv:2009.01325, section 3.4).

    `kl_estimator` is k1, k2 or k3 as in the loss `kl`; in a reward, k1 gives the gradient of the KL.
    """

    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=GRPO)
    coef: float = 0.01
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"

    extra_streams = frozenset({"ref_logprobs"})

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        penalised = [
            [self._penalised(*arguments) for arguments in zip(group.trajectories, of_group, reference, strict=True)]
            for group, of_group, reference in zip(groups, scores, streams["ref_logprobs"], strict=True)
        ]
        return self.base(groups, penalised, streams)

    def _penalised(self, trajectory: Trajectory, score: Score, reference: Sequence[FloatArray]) -> Score:
        penalties = [
            float(self._estimate((turn.sample.logprobs - logprobs).astype(np.float64)).sum())
            for turn, logprobs in zip(trajectory.turns, reference, strict=True)
        ]
        turns = (score.turns - self.coef * np.array(penalties)).astype(np.float32)
        return replace(score, turns=turns, outcome=score.result)

    def _estimate(self, log_ratio: Values) -> Values:
        if self.kl_estimator == "k1":
            return log_ratio
        return np.square(log_ratio) / 2 if self.kl_estimator == "k2" else np.exp(-log_ratio) - 1 + log_ratio
