"""The critic's values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sojourn.streams.step_context import Passes, PerTurn


@dataclass(frozen=True, kw_only=True)
class Values:
    """What the critic says of the state before each sampled token, under its weights at the beginning of the step: the
    return that it expects from there on."""

    provides: ClassVar[str] = "values"
    reference: ClassVar[bool] = False
    critic: ClassVar[bool] = True

    async def __call__(self, passes: Passes) -> PerTurn:
        return await passes.read(lambda forward: forward.values)
