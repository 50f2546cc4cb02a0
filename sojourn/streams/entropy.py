"""The entropy of the present policy."""

from __future__ import annotations

from dataclasses import dataclass

from sojourn.protocols import PerTurn, StepContext


@dataclass(frozen=True, kw_only=True)
class Entropy:
    """Entropy, in nats, of the distribution from which each token was drawn, under the trainer's weights at the
    beginning of the step.

    It is over the allowed tokens, at the sampling temperature, without top-k, top-p or min-p. The stream
    `policy_logprobs` comes from the same forward pass.
    """

    provides = "entropy"
    reference = False

    async def __call__(self, context: StepContext) -> PerTurn:
        return await context.read(lambda forward: forward.entropy)
