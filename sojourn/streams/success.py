"""Marks the tokens of successful trajectories."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.protocols import PerTurn, StepContext


@dataclass(frozen=True, kw_only=True)
class Success:
    """1 for each sampled token of a successful trajectory, and 0 for those of the others.

    Where the world does not say whether a trajectory succeeded, a reward above 0 counts as success.
    """

    provides = "success"
    reference = False

    async def __call__(self, context: StepContext) -> PerTurn:
        return [
            [
                tuple(np.full(len(turn.sample.tokens), t.success, dtype=np.float32) for turn in t.turns)
                for t in group.trajectories
            ]
            for group in context.groups
        ]
