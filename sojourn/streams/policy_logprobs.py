"""Log-probabilities under the present policy."""

from __future__ import annotations

from dataclasses import dataclass

from sojourn.protocols import PerTurn, StepContext


@dataclass(frozen=True, kw_only=True)
class PolicyLogprobs:
    """Log-probability of every sampled token under the trainer's weights at the beginning of the step.

    It differs from the sampler's where the sampler's weights lag behind or its arithmetic differs. It is the proximal
    policy of decoupled PPO (Hilton et al. 2022, arXiv:2110.00641, section 3).
    """

    provides = "policy_logprobs"
    reference = False

    async def __call__(self, context: StepContext) -> PerTurn:
        return await context.read(lambda forward: forward.logprobs)
