"""The critic's values after each token."""

from __future__ import annotations

from dataclasses import dataclass

from sojourn.protocols import PerTurn, StepContext


@dataclass(frozen=True, kw_only=True)
class NextValues:
    """Value of the state after each sampled token, under the critic's weights at the beginning of the step: within a
    turn it is the next token's value, and at the last token that of the finished action, before the world answers."""

    provides = "next_values"
    reference = False
    critic = True

    async def __call__(self, context: StepContext) -> PerTurn:
        return await context.read(lambda forward: forward.next_values)
