"""What estimators with a critic share: steps with rewards and values, generalised advantages, the critic's targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sojourn.credit.by_turn import concatenated
from sojourn.credit.relative import Values
from sojourn.types import Credit, FloatArray, Group, Score, Streams, Trajectory

PerTurn = Sequence[FloatArray]


class CriticEstimator:
    """Base of estimators that compute the credit of each trajectory by itself, from the critic's values.

    They read the streams `values` and `next_values`, which are the critic's values before and after each token, and
    those that `extra_streams` names.
    """

    provides = frozenset({"targets"})

    @property
    def extra_streams(self) -> tuple[str, ...]:
        return ()

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"values", "next_values", *self.extra_streams})

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        columns = [streams[name] for name in ("values", "next_values", *self.extra_streams)]
        return [
            [self._credit(*arguments) for arguments in zip(group.trajectories, *of_group, strict=True)]
            for group, *of_group in zip(groups, scores, *columns, strict=True)
        ]

    def _credit(self, *arguments: Any, **named: Any) -> Credit:
        """Returns the credit of a trajectory, from: it, its score, its values, its next values, its extra streams."""
        raise NotImplementedError


class Steps(NamedTuple):
    """The steps of one trajectory in order, where a step is a token or a turn."""

    rewards: Values  # (n,)
    values: Values  # (n,) the critic's values before each step
    discounts: Values  # (n,) the factor of what follows each step
    bootstrap: float  # the value after the last step, where the world would have gone on

    def advantages(self, lam: float) -> Values:
        """Returns generalised advantage estimates (Schulman et al. 2016, arXiv:1506.02438, eq. 16): (n,)."""
        next_values = np.append(self.values, self.bootstrap)[1:]
        errors = self.rewards + self.discounts * next_values - self.values
        running, advantages = 0.0, np.zeros(len(self.values))
        for step in reversed(range(len(advantages))):
            running = advantages[step] = errors[step] + self.discounts[step] * lam * running
        return advantages


def token_steps(
    trajectory: Trajectory,
    score: Score,
    values: Sequence[FloatArray],
    bootstrap: float,
    discount: float,
    token_discount: float,
) -> Steps:
    """Returns every sampled token as a step.

    `token_discount` is the factor of the next token of the same turn, `discount` that of the next turn. A turn's reward
    comes at its last token; the reward of a turn without tokens counts, discounted, for the last token before it, and
    for nothing where there is none.
    """
    lengths = [len(turn.sample.tokens) for turn in trajectory.turns]
    rewards, discounts = np.zeros(sum(lengths)), np.full(sum(lengths), token_discount)
    ends = np.cumsum(lengths)
    for end, length, reward in zip(ends, lengths, score.turns, strict=True):
        if length:
            rewards[end - 1] += reward
            discounts[end - 1] = discount
        elif end:
            rewards[end - 1] += discounts[end - 1] * reward
            discounts[end - 1] *= discount
    return Steps(rewards, concatenated(v.astype(np.float64) for v in values), discounts, bootstrap)


def turn_steps(score: Score, values: Sequence[FloatArray], bootstrap: float, discount: float) -> Steps:
    """Returns every turn as a step.

    A turn's value is the critic's before its first token; a turn without tokens has the value of the next turn.
    """
    first_values, following = np.zeros(len(values)), bootstrap
    for turn in reversed(range(len(values))):
        following = first_values[turn] = float(values[turn][0]) if len(values[turn]) else following
    return Steps(score.turns.astype(np.float64), first_values, np.full(len(values), discount), bootstrap)


def bootstrap_value(trajectory: Trajectory, next_values: Sequence[FloatArray]) -> float:
    """Returns the critic's value after the last token of a truncated trajectory; 0 where the trajectory ended."""
    last = next((v for v in reversed(next_values) if len(v)), None)
    return float(last[-1]) if trajectory.ending.truncated and last is not None else 0.0


def split_tokens(trajectory: Trajectory, values: Values) -> tuple[FloatArray, ...]:
    """Splits one value per token of the trajectory by turn: (A,) each."""
    ends = np.cumsum([len(turn.sample.tokens) for turn in trajectory.turns])
    return tuple(np.split(values.astype(np.float32), ends[:-1])) if len(ends) else ()


def at_first_token(trajectory: Trajectory, values: Values) -> tuple[FloatArray, ...]:
    """Puts one value per turn at the turn's first token, and NaN (no target) at its others: (A,) each."""
    arrays = [np.full(len(turn.sample.tokens), np.nan, dtype=np.float32) for turn in trajectory.turns]
    for array, value in zip(arrays, values, strict=True):
        array[:1] = value
    return tuple(arrays)
