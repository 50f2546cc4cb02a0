"""Labels trajectories as desirable or not, for losses that need no pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.credit.score_parts import compared
from sojourn.protocols import PerTurn, StepContext
from sojourn.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class Desirable:
    """1 for each sampled token of a desirable trajectory, -1 for those of an undesirable one, and 0 for the others.

    Successful trajectories are desirable, and the others are not. With `above`, it is by reward: a trajectory is
    desirable where its reward is above `above`, and undesirable where it is at most `below` (`above` by default);
    those between are neither. With `part` it is by that part of the reward, such as what a judge or a person said; a
    trajectory without it is neither.
    """

    above: float | None = None
    below: float | None = None
    part: str = ""

    provides = "desirable"
    reference = False
    whole_trajectories = True

    def __post_init__(self) -> None:
        if self.below is not None and (self.above is None or self.below > self.above):
            raise ValueError(f"below = {self.below:g} with above = {self.above}: expected both, and below <= above")
        if self.part and self.above is None:
            raise ValueError(f"part = '{self.part}' without above: say above which number a trajectory is desirable")

    async def __call__(self, context: StepContext) -> PerTurn:
        return [
            [
                tuple(np.full(len(turn.sample.tokens), self.label(t, value), dtype=np.float32) for turn in t.turns)
                for t, value in zip(group.trajectories, values, strict=True)
            ]
            for group, values in zip(context.groups, compared(context.scores, self.part), strict=True)
        ]

    def label(self, trajectory: Trajectory, value: float) -> int:
        """Returns 1 where a trajectory is desirable, -1 where it is undesirable, and 0 where it is neither."""
        if self.above is None:
            return 1 if trajectory.success else -1
        if value > self.above:
            return 1
        return -1 if value <= (self.above if self.below is None else self.below) else 0
