"""The results of a measurement of a world, which `sojourn envs` shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Scored:
    """The mean reward of the first seat, and the fraction of plays that were a success."""

    reward: float
    success: float


@dataclass(frozen=True)
class Measured:
    """Measurements of a world. `plays` is the number of test tasks played by chance (a random policy), and at most by
    the expert; times are medians."""

    train: int
    test: int
    plays: int
    expert: Scored | None
    chance: Scored  # of the random policy
    start_ms: float
    actions_per_s: float
    fork: str  # "own", or "re-execution" where the world has no fork of its own
    fork_ms: float  # measured in the middle of a play

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measured:
        expert = Scored(**data["expert"]) if data["expert"] else None
        return cls(**{**data, "expert": expert, "chance": Scored(**data["chance"])})
