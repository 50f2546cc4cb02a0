"""Rewards of single turns beside those of others drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar
from zlib import crc32

import numpy as np

from sojourn.config.registry import Range
from sojourn.credit.relative import Values, concatenated, seats, credit_turns, standardised, trajectory_returns, per_label
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class SRGPO:
    """The episode's standardised return plus `step_weight` times each turn's own reward, standardised among `size`
    turns drawn at random from the whole step (SRGPO of SeeNav-Agent: Wang et al. 2025, arXiv:2512.02631, by its code).

    For rewards of progress that mean the same in any state. With `by`, they are that number of `Turn.info`, else the
    turn's reward. Which turns are drawn together follows from the episodes' names. Deviations are the sample's, as in
    the code.
    """

    info_key: str = ""
    step_group_size: Annotated[int, Range(2)] = 16
    step_weight: float = 0.5
    epsilon: Annotated[float, Range(0)] = 1e-6

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        gain = partial(standardised, epsilon=self.epsilon, ddof=1)
        episode = [per_label(seats(g), trajectory_returns(judged), gain) for g, judged in zip(groups, scores, strict=True)]
        paid = [self._paid(*of) for of in zip(groups, scores, strict=True)]
        names = [f"{name}/{turn}" for group in groups for name, turns in _named(group) for turn in range(turns)]
        step = per_label(self._draw(names), concatenated(paid), gain)
        parts = np.split(step, np.cumsum([len(turns) for turns in paid])[:-1]) if groups else []
        return [
            credit_turns(group, np.repeat(whole, [len(t.turns) for t in group.trajectories]) + self.step_weight * part)
            for group, whole, part in zip(groups, episode, parts, strict=True)
        ]

    def _paid(self, group: Group, judged: Sequence[Score]) -> Values:
        """For each turn of the group."""
        if not self.info_key:
            return concatenated(score.turns.astype(np.float64) for score in judged)
        return np.array(
            [turn.info.get(self.info_key, 0.0) for t in group.trajectories for turn in t.turns], dtype=np.float64
        )

    def _draw(self, names: Sequence[str]) -> list[int]:
        """The number of each turn's lot, whatever their order."""
        order = sorted(range(len(names)), key=lambda n: crc32(names[n].encode()))
        lots = np.zeros(len(names), dtype=np.int64)
        lots[order] = np.arange(len(names)) // self.step_group_size
        return lots.tolist()


def _named(group: Group) -> list[tuple[str, int]]:
    """A name that no other trajectory has, and the turns, of each."""
    return [
        (f"{episode.id}/{seat}", len(t.turns))
        for episode in group.episodes
        if episode.error is None
        for seat, t in enumerate(episode.trajectories)
        if t.trainable
    ]
