"""Judges every group once, and remembers what it judged until the step is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sojourn.errors import ConfigError
from sojourn.protocols import Reward
from sojourn.types import Group, Score


class Judged(NamedTuple):
    group: Group
    scores: list[Score]


@dataclass
class Judge:
    """A reward with a memory: a group that was judged in its slot is not judged again by the loop."""

    reward: Reward
    _known: dict[tuple[str, ...], Judged] = field(default_factory=dict)

    async def __call__(self, groups: Sequence[Group]) -> list[list[Score]]:
        return await asyncio.gather(*(self.one(group) for group in groups))

    async def one(self, group: Group) -> list[Score]:
        key = tuple(episode.id for episode in group.episodes)
        if key not in self._known:
            scores = await self.reward(group)
            if len(scores) != len(group.trajectories):
                raise ConfigError(
                    f"the reward gave {len(scores)} scores for {len(group.trajectories)} trajectories of slot "
                    f"{group.slot}: a reward returns one score for each of group.trajectories"
                )
            if not all(np.isfinite(score.turns).all() for score in scores):
                raise ConfigError(
                    f"the reward of a trajectory of slot {group.slot} is not finite: give a finite number for each turn"
                )
            self._known[key] = Judged(group, scores)
        return self._known[key].scores

    def forget(self, before: int) -> list[Judged]:
        """Everything judged in slots below `before`, redrawn and dropped groups included; it is then forgotten."""
        done = {key: judged for key, judged in self._known.items() if judged.group.slot < before}
        for key in done:
            del self._known[key]
        return list(done.values())
