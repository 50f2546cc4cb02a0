"""Advantages of a turn among those of its place, and of its reward among those of the whole group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np

from sojourn.config.fields import Range
from sojourn.config.unused import refuse_unused
from sojourn.credit.by_turn import concatenated, credit_turns, seats_of_turns
from sojourn.credit.relative import (
    GroupEstimator,
    Normalise,
    Values,
    centred,
    per_label,
    seats,
    standardised,
    trajectory_returns,
)
from sojourn.sources.expert_match import matched_returns
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True, kw_only=True)
class UIS1(GroupEstimator):
    """The advantage of the episode level plus `step_weight` times that of the step level, for groups of `semi_online`,
    whose episodes are in the same state in the same turn (UI-S1: Lu et al. 2025, arXiv:2509.11543, by its code).

    The step level standardises, among the group's n-th turns, the discounted return from that turn to the first that
    differs from the expert. The episode level standardises rewards: with `episode` = "turns", as in the code, that of
    each turn among all turns of the group; with "trajectories" the total of an episode among the group's, which is
    the paper's word for it. Standard deviations are the sample's, as in the code; a turn without another to compare
    it with gets 0. `scale_by_std = false` only subtracts means. Groups of other sources have no expert, so that their
    returns go to the end.
    """

    discount: Annotated[float, Range(0, 1)] = 0.5
    step_weight: float = 1.0
    episode: Literal["turns", "trajectories"] = "turns"
    scale_by_std: bool = True
    epsilon: Annotated[float, Range(0)] = 1e-6

    def __post_init__(self) -> None:
        if not self.scale_by_std:
            refuse_unused(self, ["epsilon"], "with scale_by_std = false")

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        normalise: Normalise = partial(standardised, epsilon=self.epsilon, ddof=1) if self.scale_by_std else centred
        counts = [len(trajectory.turns) for trajectory in group.trajectories]
        of_turns = seats_of_turns(group)
        places = [place for count in counts for place in range(count)]
        returns = concatenated(
            matched_returns(trajectory.turns, score, self.discount)
            for trajectory, score in zip(group.trajectories, scores, strict=True)
        )
        step = per_label(zip(of_turns, places, strict=True), returns, normalise)
        return credit_turns(group, self._episode(group, scores, normalise) + self.step_weight * step)

    def _episode(self, group: Group, scores: Sequence[Score], normalise: Normalise) -> Values:
        """Returns the advantage of the episode level for each turn of the group."""
        if self.episode == "turns":
            return per_label(seats_of_turns(group), concatenated(score.turns for score in scores), normalise)
        totals = per_label(seats(group), trajectory_returns(scores), normalise)
        return np.repeat(totals, [len(trajectory.turns) for trajectory in group.trajectories])
