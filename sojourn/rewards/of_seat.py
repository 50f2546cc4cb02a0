"""Another reward for one seat, and a share of it for the seats beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np

from sojourn.composite import HasBases
from sojourn.config.fields import NONBLANK, Kind
from sojourn.protocols import Reward
from sojourn.rewards.native import Native
from sojourn.types import Group, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class OfSeat(HasBases):
    """Adds to `base` the reward `own` of the trajectories of `seat` and, for every other seat of the same episode,
    `others` times that reward, at its last turn.

    With `others = -1` what `own` scores is a zero-sum game between two seats, as in Self-RedTeam (Liu et al. 2025,
    arXiv:2506.07468), where a judge of the defender's answers rewards both; with 1 it is shared, and with 0 it is the
    seat's alone. `own` sees only the trajectories of `seat`, also those that are not trained, such as a frozen
    opponent's.
    """

    base: Annotated[Reward, Kind("reward")] = field(default_factory=Native)
    own: Annotated[Reward, Kind("reward")] = field(default_factory=Native)
    seat: Annotated[str, NONBLANK] = "agent"
    others: float = 0.0

    bases: ClassVar[tuple[str, ...]] = ("base", "own")

    @property
    def named_seats(self) -> frozenset[str]:
        return frozenset({self.seat})

    async def __call__(self, group: Group) -> list[Score]:
        scores = await self.base(group)
        scored = _with_seat_alone(group, self.seat)
        found = await self.own(scored) if scored.episodes else []
        of_episode: dict[str, list[tuple[Trajectory, Score]]] = {}
        for owner, trajectory, score in zip(scored.owners, scored.trajectories, found, strict=True):
            of_episode.setdefault(scored.episodes[owner].id, []).append((trajectory, score))
        return [
            self._with(score, trajectory, of_episode.get(group.episodes[owner].id, []))
            for owner, trajectory, score in zip(group.owners, group.trajectories, scores, strict=True)
        ]

    def _with(self, score: Score, trajectory: Trajectory, found: Sequence[tuple[Trajectory, Score]]) -> Score:
        """Returns the score of a trajectory with that of its seat, or its share of the other seat's."""
        if trajectory.agent == self.seat:
            [own] = [one for other, one in found if other.turns is trajectory.turns]
            parts, words = {**score.parts, **own.parts}, {**score.words, **own.words}
            turns = (score.turns + own.turns).astype(np.float32)
            return replace(score, turns=turns, parts=parts, words=words, outcome=score.result + own.result)
        share = self.others * sum(one.total for _, one in found)
        turns = score.turns.copy()
        turns[-1:] += np.float32(share)
        return replace(score, turns=turns, outcome=score.result + share)


def _with_seat_alone(group: Group, seat: str) -> Group:
    """Returns the group with only the trajectories of a seat trainable, and without episodes that have
    none."""
    kept = []
    for episode in group.episodes:
        seats = tuple(replace(one, trainable=one.agent == seat) for one in episode.trajectories)
        if any(one.trainable for one in seats):
            kept.append(replace(episode, trajectories=seats))
    return replace(group, episodes=tuple(kept))
