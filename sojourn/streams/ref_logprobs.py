"""Log-probabilities under the reference policy."""

from __future__ import annotations

from dataclasses import dataclass

from sojourn.protocols import PerTurn, StepContext


@dataclass(frozen=True, kw_only=True)
class RefLogprobs:
    """Log-probability of every sampled token under the reference policy: the weights at the beginning of the stage."""

    provides = "ref_logprobs"
    reference = True

    async def __call__(self, context: StepContext) -> PerTurn:
        return await context.read(lambda forward: forward.logprobs, reference=True)
