"""What each turn added to the policy's belief in the right answer, and the outcome, beside those of the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sojourn.config.registry import Range
from sojourn.credit.relative import Values, split_turns, concatenated, discounted_sums, seats_of_turns, credit_turns, standardised, per_label
from sojourn.types import Credit, FloatArray, Group, Score, Streams, Trajectory

LEAST_OUTCOME = 0.3  # what the outcomes' mean size counts for where it is smaller, so that gains go on teaching
GREATEST_SCALE = 10.0

Gains = Sequence[Sequence[FloatArray]]  # of each trajectory's turns


@dataclass(frozen=True, kw_only=True)
class IGPO:
    """Each turn's information gain, and the return at the last turn in its place, standardised over the group's turns;
    then for all tokens of a turn the discounted sum from it on (Wang et al. 2025, arXiv:2510.14967).

    `pool` "joint" standardises gains and returns together, "separate" each beside its own kind, and "scaled" (DR-Venus:
    Venus Team 2026, arXiv:2604.19859) then multiplies the gains by the mean size of the step's standardised returns (at
    least 0.3) over that of its gains, at most by 10. With `malformed` (DR-Venus) a turn whose action could not be
    carried out has minus that in place of its gain, or at the last turn of the return: a reward that takes something
    off for it would count it twice.

    Standardising is by the seat, and zero where all are alike; the authors' code also has 1e-8 under its root. The
    paper pays -2 for an answer in the wrong format: here that is the reward's to say. DR-Venus knows a malformed turn
    by a grammar of tags, here it is what the renderer or the world refused; that only some tools' turns have gains, and
    the turns before share theirs, has no counterpart.
    """

    normalisation: Literal["joint", "separate", "scaled"] = "joint"
    discount: Annotated[float, Range(0, 1)] = 1.0
    malformed_penalty: Annotated[float, Range(0)] | None = None
    epsilon: Annotated[float, Range(0)] = 1e-6

    needs: ClassVar[frozenset[str]] = frozenset({"information_gain"})

    @property
    def group_relative(self) -> bool:
        return self.normalisation != "joint" and self.malformed_penalty is None

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        last = [_last(group) for group in groups]
        found = [self._worth(*of) for of in zip(groups, scores, streams["information_gain"], last, strict=True)]
        scale = self._scale(found, last) if self.normalisation == "scaled" else 1.0
        found = [np.where(ends, worth, scale * worth) for worth, ends in zip(found, last, strict=True)]
        return [
            credit_turns(group, concatenated(discounted_sums(worth, self.discount) for worth in split_turns(group, every)))
            for group, every in zip(groups, found, strict=True)
        ]

    def _worth(self, group: Group, judged: Sequence[Score], gains: Gains, last: NDArray[np.bool_]) -> Values:
        """The standardised gain or return of every turn of the group."""
        each = zip(group.trajectories, judged, gains, strict=True)
        raw = concatenated(self._raw(trajectory, score, gain) for trajectory, score, gain in each)
        kinds = np.zeros_like(last) if self.normalisation == "joint" else last
        labels = zip(seats_of_turns(group), kinds.tolist(), strict=True)
        return per_label(labels, raw, partial(standardised, epsilon=self.epsilon))

    def _raw(self, trajectory: Trajectory, score: Score, gains: Sequence[FloatArray]) -> Values:
        found = np.array([gain.sum(dtype=np.float64) for gain in gains])
        found[-1:] = score.total
        if self.malformed_penalty is None:
            return found
        return np.where([bool(turn.info.get("malformed")) for turn in trajectory.turns], -self.malformed_penalty, found)

    def _scale(self, found: Sequence[Values], last: Sequence[NDArray[np.bool_]]) -> float:
        """By which the gains of the step are multiplied."""
        every, ends = np.abs(concatenated(found)), np.concatenate([np.zeros(0, dtype=bool), *last])
        outcome = max(float(every[ends].mean()) if ends.any() else 0.0, LEAST_OUTCOME)
        gain = self.epsilon + (float(every[~ends].mean()) if not ends.all() else 0.0)
        return min(outcome / gain, GREATEST_SCALE) if gain else 1.0


def _last(group: Group) -> NDArray[np.bool_]:
    """Which of the group's turns are the last of their trajectory."""
    ends = [np.arange(len(t.turns)) == len(t.turns) - 1 for t in group.trajectories]
    return np.concatenate([np.zeros(0, dtype=bool), *ends])
