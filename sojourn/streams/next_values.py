"""The critic's values after each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sojourn.protocols import PerTurn, StepContext


@dataclass(frozen=True, kw_only=True)
class NextValues:
    """What the critic says after each sampled token: inside a turn the next one's value, and after the last that of
    having said it, before the world answers."""

    provides: ClassVar[str] = "next_values"
    reference: ClassVar[bool] = False
    critic: ClassVar[bool] = True

    async def __call__(self, context: StepContext) -> PerTurn:
        return await context.read(lambda forward: forward.next_values)
