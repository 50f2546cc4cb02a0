"""Judges every group once, and remembers what it judged until the step is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from sojourn.errors import ConfigError
from sojourn.protocols import Reward
from sojourn.types import Group, Score


class Judged(NamedTuple):
    group: Group
    scores: list[Score]

    def only(self, numbers: Collection[int]) -> Judged:
        """With those of the group's episodes alone."""
        kept = [score for score, owner in zip(self.scores, self.group.owners, strict=True) if owner in numbers]
        episodes = tuple(episode for number, episode in enumerate(self.group.episodes) if number in numbers)
        return Judged(replace(self.group, episodes=episodes), kept)


@dataclass
class RewardCache:
    """A reward with a memory: a group that was judged in its slot is not judged again by the loop."""

    reward: Reward
    _known: dict[tuple[str, ...], tuple[int, Judged]] = field(default_factory=dict)  # with when it was asked about
    _asked: int = 0

    async def __call__(self, groups: Sequence[Group]) -> list[list[Score]]:
        return await asyncio.gather(*(self.one(group) for group in groups))

    async def one(self, group: Group) -> list[Score]:
        key = tuple(episode.id for episode in group.episodes)
        if key not in self._known:
            self._asked += 1
            asked = self._asked
            self._known[key] = asked, Judged(group, await judged(self.reward, group))
        return self._known[key][1].scores

    def forget(self, before: int) -> list[Judged]:
        """Everything judged in slots below `before`, redrawn and dropped groups included; it is then forgotten.

        It comes by slot, and of one slot in the order of play, whichever of its slots was done first.
        """
        done = {key: known for key, known in self._known.items() if known[1].group.slot < before}
        for key in done:
            del self._known[key]
        return [judged for _, judged in sorted(done.values(), key=lambda known: (known[1].group.slot, known[0]))]


async def judged(reward: Reward, group: Group) -> list[Score]:
    """What a reward says of a group, checked: one score for each trajectory, and a finite number for each turn."""
    scores = await reward(group)
    if len(scores) != len(group.trajectories):
        raise ConfigError(
            f"the reward gave {len(scores)} scores for {len(group.trajectories)} trajectories of slot "
            f"{group.slot}: a reward returns one score for each of group.trajectories"
        )
    for owner, trajectory, score in zip(group.owners, group.trajectories, scores, strict=True):
        name = group.episodes[owner].id
        if len(score.turns) != len(trajectory.turns):
            raise ConfigError(
                f"the reward gave {len(score.turns)} numbers for the {len(trajectory.turns)} turns of episode {name}: "
                "a score has one for each turn"
            )
        if wrong := [turn for turn, paid in enumerate(score.turns) if not np.isfinite(paid)]:
            raise ConfigError(
                f"the reward of turn {wrong[0]} of episode {name} is {score.turns[wrong[0]]}: expected a "
                "finite number for each turn: look at what the world or the reward divides by"
            )
    return scores
