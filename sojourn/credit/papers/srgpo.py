"""Episode advantages plus step advantages relative to randomly drawn turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated
from zlib import crc32

import numpy as np

from sojourn.config.fields import Range
from sojourn.credit.by_turn import concatenated, credit_turns
from sojourn.credit.relative import Values, per_label, seats, standardised, trajectory_returns
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class SRGPO:
    """Episode return standardised over the group, plus `step_weight` times the reward of each turn standardised among
    `step_group_size` turns drawn at random from the whole step (SRGPO of SeeNav-Agent: Wang et al. 2025,
    arXiv:2512.02631, by its code).

    It is meant for progress rewards that mean the same in any state. With `info_key`, the step rewards are this number
    of `Turn.info`, else the turns' rewards. Which turns form a step group follows from the episodes' ids. Standard
    deviations are the sample's, as in the code.
    """

    info_key: str = ""
    step_group_size: Annotated[int, Range(2)] = 16
    step_weight: float = 0.5
    epsilon: Annotated[float, Range(0)] = 1e-6

    needs = frozenset[str]()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        normalise = partial(standardised, epsilon=self.epsilon, ddof=1)
        episode = [per_label(seats(g), trajectory_returns(s), normalise) for g, s in zip(groups, scores, strict=True)]
        rewards = [self._step_rewards(g, s) for g, s in zip(groups, scores, strict=True)]
        names = [f"{name}/{turn}" for group in groups for name, turns in _names(group) for turn in range(turns)]
        step = per_label(self._step_groups(names), concatenated(rewards), normalise)
        by_group = np.split(step, np.cumsum([len(turns) for turns in rewards])[:-1]) if groups else []
        return [
            credit_turns(group, np.repeat(whole, [len(t.turns) for t in group.trajectories]) + self.step_weight * turns)
            for group, whole, turns in zip(groups, episode, by_group, strict=True)
        ]

    def _step_rewards(self, group: Group, scores: Sequence[Score]) -> Values:
        """Returns the step reward of each turn of the group."""
        if not self.info_key:
            return concatenated(score.turns.astype(np.float64) for score in scores)
        turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
        return np.array([turn.info.get(self.info_key, 0.0) for turn in turns], dtype=np.float64)

    def _step_groups(self, names: Sequence[str]) -> list[int]:
        """Returns the number of each turn's step group, which does not depend on the order of the turns."""
        order = sorted(range(len(names)), key=lambda n: crc32(names[n].encode()))
        numbers = np.zeros(len(names), dtype=np.int64)
        numbers[order] = np.arange(len(names)) // self.step_group_size
        return numbers.tolist()


def _names(group: Group) -> list[tuple[str, int]]:
    """Returns for each trajectory a name that no other one has, and its number of turns."""
    return [
        (f"{episode.id}/{seat}", len(t.turns))
        for episode in group.episodes
        if episode.error is None
        for seat, t in enumerate(episode.trajectories)
        if t.trainable
    ]
