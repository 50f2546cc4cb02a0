"""The critic's values after each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sojourn.streams.step_context import Passes, PerTurn


@dataclass(frozen=True, kw_only=True)
class NextValues:
    """What the critic says after each sampled token: inside a turn the next one's value, and after the last that of
    having said it, before the world answers."""

    provides: ClassVar[str] = "next_values"
    reference: ClassVar[bool] = False
    critic: ClassVar[bool] = True

    async def __call__(self, passes: Passes) -> PerTurn:
        return await passes.read(lambda forward: forward.next_values)
