"""The critic's values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sojourn.protocols import PerTurn, StepContext


@dataclass(frozen=True, kw_only=True)
class Values:
    """What the critic says of the state before each sampled token, under its weights at the beginning of the step: the
    return that it expects from there on."""

    provides: ClassVar[str] = "values"
    reference: ClassVar[bool] = False
    critic: ClassVar[bool] = True

    async def __call__(self, context: StepContext) -> PerTurn:
        return await context.read(lambda forward: forward.values)
