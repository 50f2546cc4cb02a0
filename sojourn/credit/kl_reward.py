"""Another estimator, for rewards less a penalty for leaving the reference policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from sojourn.config.registry import Kind
from sojourn.credit.grpo import GRPO
from sojourn.credit.relative import Values
from sojourn.credit.wrapped import Wrapped
from sojourn.types import Credit, FloatArray, Group, Score, Streams, Trajectory


@dataclass(frozen=True, kw_only=True)
class KLReward(Wrapped):
    """Takes `coef` times an estimate of KL(sampler || reference), added up over its tokens, from each turn's reward
    before another estimator sees it (Stiennon et al. 2020, arXiv:2009.01325).

    k1, k2 and k3 are those of the loss `kl`; as a reward, k1 has the gradient of the KL.
    """

    base: Annotated[Any, Kind("estimator")] = field(default_factory=GRPO)
    coef: float = 0.01
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"

    extra_streams: ClassVar[frozenset[str]] = frozenset({"ref_logprobs"})

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        reference = streams["ref_logprobs"]
        paid = [
            [self._paid(*of) for of in zip(group.trajectories, judged, known, strict=True)]
            for group, judged, known in zip(groups, scores, reference, strict=True)
        ]
        return self.base(groups, paid, streams)

    def _paid(self, trajectory: Trajectory, score: Score, reference: Sequence[FloatArray]) -> Score:
        costs = [
            float(self._estimate((turn.sample.logprobs - known).astype(np.float64)).sum())
            for turn, known in zip(trajectory.turns, reference, strict=True)
        ]
        return replace(score, turns=(score.turns - self.coef * np.array(costs)).astype(np.float32))

    def _estimate(self, gap: Values) -> Values:
        if self.kl_estimator == "k1":
            return gap
        return np.square(gap) / 2 if self.kl_estimator == "k2" else np.exp(-gap) - 1 + gap
