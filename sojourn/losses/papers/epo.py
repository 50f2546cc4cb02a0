"""The entropy bonus with a penalty for leaving the range of past entropies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch

from sojourn.config.fields import Range
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.types import Batch, FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class EPO:
    """-coef (H - b P) per token: an entropy bonus H and a smoothing penalty P for an entropy below `min_ratio` M or
    above `max_ratio` M, where M is the mean entropy, in all earlier steps, of turns with the same number in their
    trajectory (Xu et al. 2025, arXiv:2509.22576, eq. 2-6; version 2).

    P = penalty_coef (max(0, min_ratio M - H) + max(0, H - max_ratio M)), and b = 1 + exp(-decay k / m) in step k, where
    m is half of `steps`. The average is the paper's under `aggregate.by = "turn"`, except for trajectories of different
    numbers of turns, which the paper weighs alike. M is per turn number, as in the authors' code: the first turn of an
    episode is compared with first turns. Where no earlier step had a turn of that number, as in the first step, there
    is no penalty. M is computed from -log p of the sampled tokens, whose mean is the entropy. The authors' code also
    includes the present step, pads short steps with zeros before their first turn, leaves the early turns of an episode
    without penalty, and penalises by a constant, which has no gradient.
    """

    coef: Annotated[float, Range(0)] = 0.001
    min_ratio: Annotated[float, Range(0)] = 0.0
    max_ratio: Annotated[float, Range(0)] = 2.0
    penalty_coef: Annotated[float, Range(0)] = 0.1
    decay: Annotated[float, Range(0)] = 3.0
    steps: Annotated[int, Range(1)] = 150
    _past: list[list[float]] = field(default_factory=list, init=False, repr=False, compare=False)

    needs = frozenset({"entropy"})
    zero_at_zero_advantage = False

    def __post_init__(self) -> None:
        if self.min_ratio > self.max_ratio:
            raise ValueError(
                f"min_ratio = {self.min_ratio:g} with max_ratio = {self.max_ratio:g}: expected min_ratio <= max_ratio"
            )

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]:
        """Returns M and the weight b of the penalty for each token, and then adds this step's entropies to the past."""
        places = np.flatnonzero(batch.weight)
        mean, weight = (np.zeros(len(batch), dtype=np.float32) for _ in range(2))
        number = _turn_numbers(batch)[places]
        past_means = self._past_means()
        seen = number < len(past_means)
        mean[places[seen]] = past_means[number[seen]]
        weight[places[seen]] = 1 + math.exp(-self.decay * len(self._past) / max(self.steps // 2, 1))
        if len(places):
            sums = np.bincount(number, weights=-batch.logprobs[places].astype(np.float64))
            self._past.append((sums / np.bincount(number)).tolist())
        return {"epo_mean": mean, "epo_weight": weight}

    def _past_means(self) -> FloatArray:
        """Returns, for each turn number, the mean entropy of such turns over the earlier steps that had them."""
        longest = max(map(len, self._past), default=0)
        means = [np.mean([step[n] for step in self._past if n < len(step)]) for n in range(longest)]
        return np.array(means, dtype=np.float32)

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        mean, weight = batch.streams["epo_mean"], batch.streams["epo_weight"]
        below, above = self.min_ratio * mean - out.entropy, out.entropy - self.max_ratio * mean
        excess = below.clamp(min=0) + above.clamp(min=0)
        loss = -self.coef * (out.entropy - weight * self.penalty_coef * excess)
        return loss, {"beyond": (excess.detach() > 0).float() * (weight > 0)}

    def state(self) -> Mapping[str, Any]:
        return {"past": [list(step) for step in self._past]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._past[:] = [list(step) for step in state["past"]]


def _turn_numbers(batch: Batch) -> IntArray:
    """Returns for each sampled token the number, from 0 on, of its turn in its trajectory, also where branched plays
    share turns before it: (N,)."""
    sampled = batch.turn >= 0
    first = np.full(int(batch.trajectory.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, batch.trajectory[sampled], batch.turn[sampled])
    return batch.turn - first[batch.trajectory]
