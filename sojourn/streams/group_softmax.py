"""Compares the rewards of a group by their softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.fields import Range
from sojourn.protocols import PerTurn, StepContext
from sojourn.types import FloatArray, Group, Score


@dataclass(frozen=True, kw_only=True)
class GroupSoftmax:
    """K exp(r / `alpha`) / sum exp(r / `alpha`) for each sampled token of a trajectory with reward r, where the sum is
    over the K trajectories of its seat in its group: 1 on average, and 1 for all where their rewards are equal.

    A small `alpha` gives nearly all to the best trajectory. The loss `nca` learns from it.
    """

    alpha: Annotated[float, Range(above=0)] = 0.5

    provides = "group_softmax"
    reference = False
    whole_trajectories = True

    async def __call__(self, context: StepContext) -> PerTurn:
        return [
            [
                tuple(np.full(len(turn.sample.tokens), share, dtype=np.float32) for turn in t.turns)
                for t, share in zip(group.trajectories, self.shares(group, scores), strict=True)
            ]
            for group, scores in zip(context.groups, context.scores, strict=True)
        ]

    def shares(self, group: Group, scores: Sequence[Score]) -> FloatArray:
        """Returns the number of each trajectory of a group; those that took no turn are left out of the sum."""
        out = np.zeros(len(group.trajectories), dtype=np.float32)
        acting = [n for n, trajectory in enumerate(group.trajectories) if trajectory.turns]
        for seat in {group.trajectories[n].agent for n in acting}:
            own = [n for n in acting if group.trajectories[n].agent == seat]
            rewards = np.array([scores[n].total for n in own]) / self.alpha
            weights = np.exp(rewards - rewards.max())
            out[own] = len(own) * weights / weights.sum()
        return out
