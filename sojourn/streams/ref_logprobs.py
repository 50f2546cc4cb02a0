"""The reference policy's logprobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sojourn.protocols import PerTurn, StepContext


@dataclass(frozen=True, kw_only=True)
class RefLogprobs:
    """Log-probability of every sampled token under the weights that the stage began with."""

    provides: ClassVar[str] = "ref_logprobs"
    reference: ClassVar[bool] = True

    async def __call__(self, context: StepContext) -> PerTurn:
        return await context.read(lambda forward: forward.logprobs, reference=True)
