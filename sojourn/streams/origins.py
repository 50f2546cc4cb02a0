"""Numbers the origin of the group that each token belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from sojourn.protocols import PerTurn, StepContext
from sojourn.types import Group

EXACT = 1 << 24  # whole numbers below it are exact in float32


@dataclass(frozen=True, kw_only=True)
class Origins:
    """The number of the origin of each token's group, so that a loss can be applied to some of them (`of_origin`).

    The origin is "policy" for groups that the policy played for the step, else the name of the source that gave them.
    """

    provides = "origins"
    reference = False

    async def __call__(self, context: StepContext) -> PerTurn:
        return origin_numbers(context.groups)


def origin_numbers(groups: Sequence[Group]) -> PerTurn:
    """Returns the number of its group's origin for each sampled token."""
    return [
        [
            tuple(np.full(len(turn.sample.tokens), number_of(group.origin), dtype=np.float32) for turn in t.turns)
            for t in group.trajectories
        ]
        for group in groups
    ]


def number_of(origin: str) -> float:
    """Returns the number of an origin, which follows from its name, and is not 0, which tokens of contexts have."""
    return float(1 + crc32(origin.encode()) % (EXACT - 1))
