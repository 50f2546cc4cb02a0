"""Pairs the better with the worse trajectories of each group, for losses of preferences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from sojourn.config.fields import Range
from sojourn.credit.score_parts import compared
from sojourn.finite import tolerance
from sojourn.protocols import PerTurn, StepContext
from sojourn.types import Group


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The number of its pair for each sampled token of a trajectory: k where it is the preferred one of pair k, -k
    where it is the other, and 0 where it is in no pair.

    Within a group, the trajectories of each seat are ordered by reward; the best is paired with the worst, the second
    with the second worst, and so on, as long as their rewards differ by more than `margin`. So a trajectory is in one
    pair at most. `max_pairs` bounds the pairs of each seat of a group (0: all). With `part`, they are compared by that
    part of the reward alone, such as what a judge or a person said of each; those without it are in no pair.
    """

    margin: Annotated[float, Range(0)] = 0.0
    max_pairs: Annotated[int, Range(0)] = 0
    part: str = ""

    provides = "pairs"
    reference = False
    whole_trajectories = True

    async def __call__(self, context: StepContext) -> PerTurn:
        count, numbered = 0, list[list[tuple[Any, ...]]]()
        for group, values in zip(context.groups, compared(context.scores, self.part), strict=True):
            numbers = np.zeros(len(group.trajectories), dtype=np.float32)
            for better, worse in self.pairs(group, values.tolist()):
                count += 1
                numbers[better], numbers[worse] = count, -count
            numbered.append(
                [
                    tuple(np.full(len(turn.sample.tokens), number, dtype=np.float32) for turn in trajectory.turns)
                    for trajectory, number in zip(group.trajectories, numbers, strict=True)
                ]
            )
        return numbered

    def pairs(self, group: Group, values: Sequence[float]) -> list[tuple[int, int]]:
        """Returns the pairs of a group, the preferred trajectory first, by their numbers in `group.trajectories`, each
        of which has one of `values`; those whose value is NaN are in no pair."""
        found, owners = list[tuple[int, int]](), group.owners
        least = max(self.margin, tolerance([value for value in values if not math.isnan(value)]))
        known = [n for n, one in enumerate(group.trajectories) if one.turns and not math.isnan(values[n])]
        for seat in dict.fromkeys(group.trajectories[n].agent for n in known):
            own = [n for n in known if group.trajectories[n].agent == seat]
            own.sort(key=lambda n: (-values[n], group.episodes[owners[n]].id))  # in whatever order they come
            chosen = [pair for pair in zip(own, own[::-1], strict=True) if pair[0] != pair[1]][: len(own) // 2]
            differing = [(a, b) for a, b in chosen if values[a] - values[b] > least]
            found += differing[: self.max_pairs or None]
        return found
