"""The world's own reward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.types import Group, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class Native:
    """`scale` times the world's reward of each turn, plus `malformed` for each turn whose action could not be carried
    out, plus `truncated` at the last turn of a truncated trajectory."""

    scale: float = 1.0
    malformed: float = 0.0
    truncated: float = 0.0

    async def __call__(self, group: Group) -> list[Score]:
        return [self._score(trajectory) for trajectory in group.trajectories]

    def _score(self, trajectory: Trajectory) -> Score:
        turns = np.array([self.scale * turn.reward for turn in trajectory.turns], dtype=np.float32)
        outcome = float(turns.sum()) if self.malformed or self.truncated else None
        if not len(turns):
            outcome = self.scale * trajectory.reward
        malformed = np.array([turn.info.get("malformed", 0.0) for turn in trajectory.turns], dtype=np.float32)
        turns = (turns + self.malformed * malformed).astype(np.float32)
        if len(turns) and trajectory.ending.truncated:
            turns[-1] += self.truncated
        return Score(
            turns,
            {
                "success": float(trajectory.success),
                "malformed": float(malformed.sum()),
                "truncated": float(trajectory.ending.truncated),
            },
            outcome=outcome,
        )
