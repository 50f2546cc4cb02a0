"""Returns standardised over the whole step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.fields import Range
from sojourn.credit.relative import Values, centred, per_label, seats, trajectory_returns
from sojourn.finite import differ
from sojourn.types import Credit, FloatArray, Group, Score, Streams, Trajectory


@dataclass(frozen=True, kw_only=True)
class ReinforcePP:
    """Return minus `kl_coef` times the log-ratio to the reference summed from each token on, standardised over all
    tokens of the step (REINFORCE++: Hu et al. 2025, arXiv:2501.03262).

    With `baseline` (REINFORCE++-baseline) the group's mean return is subtracted first. The standard deviation is the
    population's over tokens, as in OpenRLHF, so that long trajectories count more; equal returns give 0. The KL term
    needs the stream `ref_logprobs`, unless its coefficient is 0.
    """

    baseline: bool = False
    kl_coef: Annotated[float, Range(0)] = 0.0
    epsilon: Annotated[float, Range(above=0)] = 1e-8

    group_relative = True

    @property
    def min_group_size(self) -> int:
        return 2 if self.baseline else 1

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"ref_logprobs"}) if self.kl_coef else frozenset()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        per_token: list[list[list[Values]]] = []
        for number, (group, group_scores) in enumerate(zip(groups, scores, strict=True)):
            returns = trajectory_returns(group_scores)
            returns = per_label(seats(group), returns, centred) if self.baseline else returns
            reference = streams["ref_logprobs"][number] if self.kl_coef else [() for _ in returns]
            columns = zip(group.trajectories, returns, reference, strict=True)
            per_token.append([self._penalised(*arguments) for arguments in columns])
        every = np.concatenate([np.zeros(0), *(turn for group in per_token for t in group for turn in t)])
        mean, variance = (every.mean(), every.var()) if len(every) else (0.0, 0.0)
        scale = 1 / np.sqrt(max(variance, self.epsilon)) if differ(every) else 0.0
        return [
            [Credit(tuple(((turn - mean) * scale).astype(np.float32) for turn in t)) for t in group]
            for group in per_token
        ]

    def _penalised(self, trajectory: Trajectory, total: float, reference: Sequence[FloatArray]) -> list[Values]:
        """Returns the return minus the KL penalties from each token on: (A,) per turn."""
        logprobs = [turn.sample.logprobs.astype(np.float64) for turn in trajectory.turns]
        if not reference:
            return [np.full(len(turn), total) for turn in logprobs]
        log_ratios = np.concatenate([np.zeros(0), *(p - q for p, q in zip(logprobs, reference, strict=True))])
        penalised = total - self.kl_coef * np.cumsum(log_ratios[::-1])[::-1]
        return np.split(penalised, np.cumsum([len(turn) for turn in logprobs])[:-1]) if logprobs else []
