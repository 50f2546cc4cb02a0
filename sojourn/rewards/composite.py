"""A weighted sum of the world's numbers as the reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sojourn.config.unused import refuse_unused
from sojourn.types import Group, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class Composite:
    """Weighted sum, at the last turn, of numbers in `Turn.info`, each with its last value in the trajectory, behind a
    gate (after the reward of Deep-DxSearch: Zheng et al. 2025, arXiv:2508.15746, by its code, whose gate is the format
    and whose weights are 0.8 for what was found on the way, 0.05 for the search and 0.15 for the answer).

    A trajectory whose number `gate_key` is 0 or missing gets `closed_reward` instead. A missing number of `weights`
    counts as 0.
    """

    weights: Mapping[str, float] = field(default_factory=lambda: {"success": 1.0})
    gate_key: str = ""
    closed_reward: float = 0.0

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            if not isinstance(weight, int | float) or isinstance(weight, bool) or not np.isfinite(weight):
                raise ValueError(f"weights.{name} = {weight!r}: expected a finite number")
        if not self.weights:
            raise ValueError("weights = {}: name at least one number of Turn.info")
        if not self.gate_key:
            refuse_unused(self, ["closed_reward"], "without gate_key, so that nothing is closed")

    async def __call__(self, group: Group) -> list[Score]:
        return [self._score(trajectory) for trajectory in group.trajectories]

    def _score(self, trajectory: Trajectory) -> Score:
        infos = [turn.info for turn in trajectory.turns] or [trajectory.unacted_info]
        last_values = {name: value for info in infos for name, value in info.items()}
        parts = {name: float(last_values.get(name, 0.0)) for name in self.weights}
        is_open = not self.gate_key or bool(last_values.get(self.gate_key, 0.0))
        total = sum(self.weights[name] * value for name, value in parts.items()) if is_open else self.closed_reward
        turns = np.zeros(len(trajectory.turns), dtype=np.float32)
        turns[-1:] = total
        parts = {"success": float(trajectory.success), "gate": float(is_open), **parts}
        return Score(turns, parts, outcome=None if len(turns) else total)
