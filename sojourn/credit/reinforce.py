"""The policy gradient with a baseline per turn."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from sojourn.config.fields import Range
from sojourn.credit.by_turn import concatenated, credit_turns, returns_to_go
from sojourn.credit.relative import centred, per_label
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class Reinforce:
    """Discounted return-to-go of each turn, minus the mean return-to-go of the turns that have the same number in their
    trajectories, the same seat and the same world (Williams 1992, sections 4-6; a baseline that depends on time, as in
    Peters and Schaal 2008, "Reinforcement learning of motor skills with policy gradients").

    The mean is over the whole step, or with `baseline = "group"` over the turn's group; a turn without others to
    compare with gets its return-to-go minus itself, which is 0. With `discount = 1` and `baseline = "none"` this is the
    plain policy gradient. Deviations: the mean contains the turn itself, which scales its gradient by (M - 1) / M for M
    turns; the baseline is the plain mean, not the one of minimum variance, which weighs returns by squared gradients.
    """

    discount: Annotated[float, Range(0, 1)] = 1.0
    baseline: Literal["step", "group", "none"] = "step"

    needs = frozenset[str]()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        advantages = [concatenated(returns_to_go(s, self.discount) for s in group_scores) for group_scores in scores]
        if self.baseline != "none":
            labels = [label for number, group in enumerate(groups) for label in self._labels(number, group)]
            gain = per_label(labels, concatenated(advantages), centred)
            ends = np.cumsum([len(turns) for turns in advantages])
            advantages = np.split(gain, ends[:-1]) if groups else []
        return [credit_turns(group, turns) for group, turns in zip(groups, advantages, strict=True)]

    def _labels(self, number: int, group: Group) -> list[Hashable]:
        """Returns a label for each turn of the group: turns with the same label share a baseline."""
        scope = group.task.env if self.baseline == "step" else number
        return [(scope, t.agent, turn) for t in group.trajectories for turn in range(len(t.turns))]
