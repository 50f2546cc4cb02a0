"""REINFORCE with a baseline for each turn."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from sojourn.config.registry import Range
from sojourn.credit.relative import centred, concatenated, returns_to_go, credit_turns, per_label
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class Reinforce:
    """Discounted return-to-go of each turn, minus the mean return-to-go of the turns that have the same number in their
    trajectories, the same seat and the same world (Williams 1992, sections 4-6; a baseline that depends on time, as in
    Peters and Schaal 2008, "Reinforcement learning of motor skills with policy gradients").

    The mean is over the whole step, or with `baseline = "group"` over the turn's group; a turn with no other to compare
    it with has its return-to-go less itself, which is 0. With `discount = 1` and `baseline = "none"` it is the bare
    policy gradient. Deviations: the mean contains the turn itself, which scales its gradient by (M - 1) / M for M;
    the baseline is the plain mean, not that of least variance, which weighs returns by squared gradients.
    """

    discount: Annotated[float, Range(0, 1)] = 1.0
    baseline: Literal["step", "group", "none"] = "step"

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        found = [concatenated(returns_to_go(score, self.discount) for score in judged) for judged in scores]
        if self.baseline != "none":
            labels = [label for number, group in enumerate(groups) for label in self._labels(number, group)]
            gain = per_label(labels, concatenated(found), centred)
            found = np.split(gain, np.cumsum([len(turns) for turns in found])[:-1]) if groups else []
        return [credit_turns(group, turns) for group, turns in zip(groups, found, strict=True)]

    def _labels(self, number: int, group: Group) -> list[Hashable]:
        """For each turn of the group, what the turns that it is compared with have in common."""
        where = group.task.env if self.baseline == "step" else number
        return [(where, t.agent, turn) for t in group.trajectories for turn in range(len(t.turns))]
