"""How certain the policy was at a turn."""

from __future__ import annotations

from sojourn.types import Turn


def sampled_entropy(turn: Turn, tokens: int | None = None) -> float:
    """Returns minus the mean log-probability of a turn's sampled tokens, or of the first `tokens`, 0 without any: an
    estimate of the policy's entropy there, in nats a token."""
    logprobs = turn.sample.logprobs[:tokens]
    return -float(logprobs.mean()) if len(logprobs) else 0.0
