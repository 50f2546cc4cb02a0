"""What estimators have in common that rest on a critic: sums of temporal differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sojourn.credit.relative import Values, concatenated
from sojourn.types import Credit, FloatArray, Group, Score, Streams, Trajectory

PerTurn = Sequence[FloatArray]


class CriticEstimator:
    """An estimator that looks at each trajectory by itself, beside what the critic said of it before and after each
    token, and what the streams `also` say."""

    provides: ClassVar[frozenset[str]] = frozenset({"targets"})

    @property
    def extra_streams(self) -> tuple[str, ...]:
        return ()

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"values", "next_values", *self.extra_streams})

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        read = [streams[name] for name in ("values", "next_values", *self.extra_streams)]
        known = zip(groups, scores, *read, strict=True)
        return [[self._one(*of) for of in zip(group.trajectories, *rest, strict=True)] for group, *rest in known]

    def _one(self, *of: Any, **named: Any) -> Credit:
        """Of the trajectory, its score, what the critic said before and after each token, and what the others said."""
        raise NotImplementedError


class Steps(NamedTuple):
    """The steps of one trajectory, in order: what each was paid, what the critic said before it, and how much what
    follows counts."""

    rewards: Values  # (n,)
    values: Values  # (n,)
    discounts: Values  # (n,) of what follows each step
    after: float  # the value of what follows the last, where the world would have gone on

    def advantages(self, lam: float) -> Values:
        """Generalised advantages (Schulman et al. 2016, arXiv:1506.02438, eq. 16): (n,)."""
        ahead = np.append(self.values, self.after)[1:]
        differences = self.rewards + self.discounts * ahead - self.values
        going, out = 0.0, np.zeros(len(self.values))
        for step in reversed(range(len(out))):
            going = out[step] = differences[step] + self.discounts[step] * lam * going
        return out


def token_steps(
    trajectory: Trajectory, score: Score, values: Sequence[FloatArray], after: float, discount: float, within: float
) -> Steps:
    """Every sampled token is a step, of which `within` discounts what follows inside a turn, and `discount` the next
    turn. A turn is paid at its last token; what a turn without tokens was paid counts for the token before it."""
    lengths = [len(turn.sample.tokens) for turn in trajectory.turns]
    rewards, discounts = np.zeros(sum(lengths)), np.full(sum(lengths), within)
    ends = np.cumsum(lengths)
    for end, length, reward in zip(ends, lengths, score.turns, strict=True):
        if end:
            rewards[end - 1] += reward if length else discount * reward
            discounts[end - 1] = discount
    return Steps(rewards, concatenated(v.astype(np.float64) for v in values), discounts, after)


def turn_steps(score: Score, values: Sequence[FloatArray], after: float, discount: float) -> Steps:
    """Every turn is a step, whose value is that of the state in which its first token is drawn; without tokens, that of
    the next turn."""
    first, following = np.zeros(len(values)), after
    for turn in reversed(range(len(values))):
        following = first[turn] = float(values[turn][0]) if len(values[turn]) else following
    return Steps(score.turns.astype(np.float64), first, np.full(len(first), discount), after)


def bootstrap_value(trajectory: Trajectory, next_values: Sequence[FloatArray]) -> float:
    """The critic's value of where a trajectory was cut off; 0 where it ended by itself."""
    last = next((v for v in reversed(next_values) if len(v)), None)
    return float(last[-1]) if trajectory.ending.truncated and last is not None else 0.0


def split_tokens(trajectory: Trajectory, values: Values) -> tuple[FloatArray, ...]:
    """A number for each token, split_turns to the turns."""
    ends = np.cumsum([len(turn.sample.tokens) for turn in trajectory.turns])
    return tuple(np.split(values.astype(np.float32), ends[:-1])) if len(ends) else ()


def at_first_token(trajectory: Trajectory, values: Values) -> tuple[FloatArray, ...]:
    """A number for each turn, at its first token; NaN at the others."""
    arrays = [np.full(len(turn.sample.tokens), np.nan, dtype=np.float32) for turn in trajectory.turns]
    for array, value in zip(arrays, values, strict=True):
        array[:1] = value
    return tuple(arrays)
