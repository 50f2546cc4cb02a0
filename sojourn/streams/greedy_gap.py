"""Computes how much less likely the reference policy's greedy token is under the present policy than its own."""

from __future__ import annotations

from dataclasses import dataclass

from sojourn.batch.flatten import scatter
from sojourn.protocols import PerTurn, StepContext


@dataclass(frozen=True, kw_only=True)
class GreedyGap:
    """Log-ratio log p(a) - max log p at each sampled token under the present weights, in nats, where a is the likeliest
    token there under the reference policy: the weights at the beginning of the stage.

    It is 0 where both policies have the same greedy token, and negative elsewhere.
    """

    provides = "greedy_gap"
    reference = True

    async def __call__(self, context: StepContext) -> PerTurn:
        batch, places = context.flat
        first = await context.trainer.forward(batch, reference=True, columns=["top_token"])
        now = await context.trainer.forward(batch, columns=["top_logprob"], tokens=first.columns["top_token"])
        return scatter(context.groups, now.logprobs - now.columns["top_logprob"], places)
