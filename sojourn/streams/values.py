"""The critic's values before each token."""

from __future__ import annotations

from dataclasses import dataclass

from sojourn.protocols import PerTurn, StepContext


@dataclass(frozen=True, kw_only=True)
class Values:
    """Value of the state before each sampled token, the return that the critic expects from there on, under the
    critic's weights at the beginning of the step."""

    provides = "values"
    reference = False
    critic = True

    async def __call__(self, context: StepContext) -> PerTurn:
        return await context.read(lambda forward: forward.values)
