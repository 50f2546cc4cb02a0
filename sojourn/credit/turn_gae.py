"""Generalised advantages of turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from sojourn.credit import temporal
from sojourn.registry import Range
from sojourn.types import Credit, FloatArray, Group, Score, Streams, Trajectory

Share = Annotated[float, Range(0, 1)]


@dataclass(frozen=True, kw_only=True)
class TurnGAE:
    """The generalised advantage of each turn, for all of its tokens."""

    discount: Share = 0.99
    lam: Share = 0.95
    critic_lam: Share | None = None

    needs: ClassVar[frozenset[str]] = frozenset({"values", "next_values"})
    gives: ClassVar[frozenset[str]] = frozenset({"targets"})

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        known = zip(groups, scores, streams["values"], streams["next_values"], strict=True)
        return [[self._one(*of) for of in zip(group.trajectories, *rest, strict=True)] for group, *rest in known]

    def _one(
        self, trajectory: Trajectory, score: Score, values: Sequence[FloatArray], ahead: Sequence[FloatArray]
    ) -> Credit:
        path = temporal.by_turn(score, values, temporal.after(trajectory, ahead), self.discount)
        advantages = path.advantages(self.lam)
        learnt = path.advantages(self.lam if self.critic_lam is None else self.critic_lam)
        return temporal.spread_over_turns(trajectory, path, advantages, learnt)
