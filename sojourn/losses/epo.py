"""Entropy, kept within what it has been so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from sojourn.config.registry import Range
from sojourn.protocols import Output, Selected
from sojourn.types import Batch, FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class EPO:
    """-coef (H - b P) per token: an entropy bonus, and a penalty P for an entropy H beyond `low` to `high` times the
    mean entropy M of turns of the same number in all earlier steps (Xu et al. 2025, arXiv:2509.22576, eq. 2-6; version
    2).

    P = penalty (max(0, low M - H) + max(0, H - high M)), and b = 1 + exp(-decay k / m) in step k, where m is half of
    `steps`. It averages as the paper does under `aggregate.by = "turn"`, but for trajectories of different numbers of
    turns, which the paper weighs alike. M is of each turn's number in its trajectory, as in the authors' code: the
    first turn of an episode is compared with first turns. Where no earlier step had a turn of that number, as in the
    first step, there is no penalty. M is made from -log p of what was sampled, whose mean is the entropy. The authors'
    code also counts the present step, fills up short steps with zeros before their first turn, leaves the early turns
    of an episode without penalty, and penalises by a constant, which has no gradient.
    """

    coef: Annotated[float, Range(0)] = 0.001
    min_ratio: Annotated[float, Range(0)] = 0.0
    max_ratio: Annotated[float, Range(0)] = 2.0
    penalty_coef: Annotated[float, Range(0)] = 0.1
    decay: Annotated[float, Range(0)] = 3.0
    steps: Annotated[int, Range(1)] = 150
    _past: list[list[float]] = field(default_factory=list, init=False, repr=False, compare=False)

    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})
    zero_at_zero_advantage: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.min_ratio > self.max_ratio:
            raise ValueError(
                f"min_ratio = {self.min_ratio:g} with max_ratio = {self.max_ratio:g}: expected "
                "min_ratio <= max_ratio"
            )

    def columns(self, batch: Batch) -> Mapping[str, FloatArray]:
        """Returns M and the weight of the penalty for each token; then this step's entropies are part of the past."""
        where = np.flatnonzero(batch.weight)
        mean, weight = (np.zeros(len(batch), dtype=np.float32) for _ in range(2))
        number = _numbers(batch.turn[where], batch.trajectory[where])
        known = self._means()
        seen = number < len(known)
        mean[where[seen]] = known[number[seen]]
        weight[where[seen]] = 1 + math.exp(-self.decay * len(self._past) / max(self.steps // 2, 1))
        if len(where):
            entropies = np.bincount(number, weights=-batch.logprobs[where].astype(np.float64)) / np.bincount(number)
            self._past.append(entropies.tolist())
        return {"epo_mean": mean, "epo_weight": weight}

    def _means(self) -> FloatArray:
        """Returns, for each number of a turn, the mean entropy of such turns over the earlier steps that had them."""
        longest = max(map(len, self._past), default=0)
        means = [np.mean([step[n] for step in self._past if n < len(step)]) for n in range(longest)]
        return np.array(means, dtype=np.float32)

    def __call__(self, out: Output, batch: Selected) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        mean, weight = batch.streams["epo_mean"], batch.streams["epo_weight"]
        beyond = (self.min_ratio * mean - out.entropy).clamp(min=0) + (out.entropy - self.max_ratio * mean).clamp(min=0)
        loss = -self.coef * (out.entropy - weight * self.penalty_coef * beyond)
        return loss, {"beyond": (beyond.detach() > 0).float() * (weight > 0)}

    def state(self) -> Mapping[str, Any]:
        return {"past": [list(step) for step in self._past]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._past[:] = [list(step) for step in state["past"]]


def _numbers(turn: IntArray, trajectory: IntArray) -> IntArray:
    """Returns, for each token, which turn of its trajectory it is of, from 0 on, in the order in which they stand in
    the batch: (n,)."""
    _, first, place = np.unique(turn, return_index=True, return_inverse=True)
    owner = trajectory[first]  # of each turn, in ascending order, as the batch is laid out by trajectory
    return (np.arange(len(owner)) - np.searchsorted(owner, owner))[place]
