"""Information gain of turns and the outcome, relative to the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from sojourn.config.fields import Range
from sojourn.credit.by_turn import concatenated, credit_turns, discounted_sums, seats_of_turns, split_turns
from sojourn.credit.relative import Values, per_label, standardised
from sojourn.types import Credit, FloatArray, Group, Score, Streams, Trajectory

MIN_OUTCOME = 0.3  # lower bound of the mean size of standardised returns, so that gains keep teaching
MAX_SCALE = 10.0

Gains = Sequence[Sequence[FloatArray]]  # of each trajectory's turns


@dataclass(frozen=True, kw_only=True)
class IGPO:
    """Discounted sum, from each turn on, of the turns' information gains and, at the last turn, the return instead,
    which are standardised over the group's turns beforehand (Wang et al. 2025, arXiv:2510.14967).

    `normalisation` "joint" standardises gains and returns together, "separate" each among its own kind, and "scaled"
    (DR-Venus: Venus Team 2026, arXiv:2604.19859) then multiplies the gains by the mean absolute value of the step's
    standardised returns (at least 0.3) over that of its gains, at most by 10. With `malformed_penalty` (DR-Venus) a
    turn whose action could not be carried out has minus this number instead of its gain, or, at the last turn, instead
    of the return: a reward that also subtracts something for it would count it twice.

    Values are compared within one seat, and equal values give zero; the authors' code also has 1e-8 under its root. The
    paper gives -2 for an answer in the wrong format: here that is left to the reward. DR-Venus knows a malformed turn
    by a grammar of tags, here it is one that the renderer or the world refused; that only the turns of some tools have
    gains, which the turns before them share, has no counterpart.
    """

    normalisation: Literal["joint", "separate", "scaled"] = "joint"
    discount: Annotated[float, Range(0, 1)] = 1.0
    malformed_penalty: Annotated[float, Range(0)] | None = None
    epsilon: Annotated[float, Range(0)] = 1e-6

    needs = frozenset({"information_gain"})

    @property
    def group_relative(self) -> bool:
        return self.normalisation != "joint" and self.malformed_penalty is None

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        is_last = [_is_last(group) for group in groups]
        columns = zip(groups, scores, streams["information_gain"], is_last, strict=True)
        rewards = [self._standardised(*arguments) for arguments in columns]
        scale = self._gain_scale(rewards, is_last) if self.normalisation == "scaled" else 1.0
        rewards = [np.where(last, values, scale * values) for values, last in zip(rewards, is_last, strict=True)]
        return [
            credit_turns(group, concatenated(discounted_sums(r, self.discount) for r in split_turns(group, values)))
            for group, values in zip(groups, rewards, strict=True)
        ]

    def _standardised(self, group: Group, scores: Sequence[Score], gains: Gains, is_last: NDArray[np.bool_]) -> Values:
        """Returns the standardised gain or return of every turn of the group."""
        columns = zip(group.trajectories, scores, gains, strict=True)
        rewards = concatenated(self._turn_rewards(trajectory, score, gain) for trajectory, score, gain in columns)
        kinds = np.zeros_like(is_last) if self.normalisation == "joint" else is_last
        labels = zip(seats_of_turns(group), kinds.tolist(), strict=True)
        return per_label(labels, rewards, partial(standardised, epsilon=self.epsilon))

    def _turn_rewards(self, trajectory: Trajectory, score: Score, gains: Sequence[FloatArray]) -> Values:
        """Returns the information gain of each turn, but the return at the last turn: (T,)."""
        rewards = np.array([gain.sum(dtype=np.float64) for gain in gains])
        rewards[-1:] = score.total
        if self.malformed_penalty is None:
            return rewards
        malformed = [bool(turn.info.get("malformed")) for turn in trajectory.turns]
        return np.where(malformed, -self.malformed_penalty, rewards)

    def _gain_scale(self, rewards: Sequence[Values], is_last: Sequence[NDArray[np.bool_]]) -> float:
        """Returns the factor for the gains of the step."""
        sizes, last = np.abs(concatenated(rewards)), np.concatenate([np.zeros(0, dtype=bool), *is_last])
        outcome = max(float(sizes[last].mean()) if last.any() else 0.0, MIN_OUTCOME)
        gain = self.epsilon + (float(sizes[~last].mean()) if not last.all() else 0.0)
        return min(outcome / gain, MAX_SCALE) if gain else 1.0


def _is_last(group: Group) -> NDArray[np.bool_]:
    """Returns which of the group's turns are the last of their trajectory."""
    ends = [np.arange(len(t.turns)) == len(t.turns) - 1 for t in group.trajectories]
    return np.concatenate([np.zeros(0, dtype=bool), *ends])
