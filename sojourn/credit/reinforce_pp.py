"""REINFORCE with the return of each token, normalised over the whole step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from sojourn.config.registry import Range
from sojourn.credit.relative import Values, centred, seats, trajectory_returns, per_label
from sojourn.types import Credit, FloatArray, Group, Score, Streams, Trajectory


@dataclass(frozen=True, kw_only=True)
class ReinforcePP:
    """Return less `kl_coef` times the log-ratio to the reference from each token on, standardised over all tokens of
    the step (REINFORCE++: Hu et al. 2025, arXiv:2501.03262).

    With `baseline` (REINFORCE++-baseline) the group's mean return is taken off first. The deviation is the
    population's over tokens, as in OpenRLHF, so that long trajectories count more. The KL needs `ref_logprobs`,
    unless its coefficient is 0.
    """

    baseline: bool = False
    kl_coef: Annotated[float, Range(0)] = 0.0
    epsilon: Annotated[float, Range(above=0)] = 1e-8

    group_relative: ClassVar[bool] = True

    @property
    def min_group_size(self) -> int:
        return 2 if self.baseline else 1

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"ref_logprobs"}) if self.kl_coef else frozenset()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        worth: list[list[list[Values]]] = []
        for g, (group, judged) in enumerate(zip(groups, scores, strict=True)):
            found = trajectory_returns(judged)
            found = per_label(seats(group), found, centred) if self.baseline else found
            penalties = streams["ref_logprobs"][g] if self.kl_coef else [() for _ in found]
            worth.append([self._one(*of) for of in zip(group.trajectories, found, penalties, strict=True)])
        every = np.concatenate([np.zeros(0), *(turn for group in worth for t in group for turn in t)])
        mean, variance = (every.mean(), every.var()) if len(every) else (0.0, 0.0)
        scale = 1 / np.sqrt(max(variance, self.epsilon))
        return [
            [Credit(tuple(((turn - mean) * scale).astype(np.float32) for turn in t)) for t in group] for group in worth
        ]

    def _one(self, trajectory: Trajectory, total: float, reference: Sequence[FloatArray]) -> list[Values]:
        """What follows from each token: (A,) for each turn."""
        sampled = [turn.sample.logprobs.astype(np.float64) for turn in trajectory.turns]
        if not reference:
            return [np.full(len(logprobs), total) for logprobs in sampled]
        costs = np.concatenate([np.zeros(0), *(one - other for one, other in zip(sampled, reference, strict=True))])
        onward = total - self.kl_coef * np.cumsum(costs[::-1])[::-1]
        return np.split(onward, np.cumsum([len(logprobs) for logprobs in sampled])[:-1]) if sampled else []
