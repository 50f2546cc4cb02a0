"""How much less likely the first policy's choice is than the present one's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sojourn.batch.flatten import scatter
from sojourn.protocols import PerTurn, StepContext


@dataclass(frozen=True, kw_only=True)
class GreedyGap:
    """For each sampled token, log p(a) - max log p under the present weights, in nats, where a is the likeliest token
    in its place under the weights that the stage began with: 0 where both would say the same, else below."""

    provides: ClassVar[str] = "greedy_gap"
    reference: ClassVar[bool] = True

    async def __call__(self, context: StepContext) -> PerTurn:
        batch, places = context.flat
        first = await context.trainer.forward(batch, reference=True, columns=["top_token"])
        now = await context.trainer.forward(batch, columns=["top_logprob"], tokens=first.columns["top_token"])
        return scatter(context.groups, now.logprobs - now.columns["top_logprob"], places)
