"""Forks where the policy was less certain than at its first turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.branching.rule import BranchPoint, Fork
from sojourn.config.fields import Range
from sojourn.types import Turn


@dataclass(frozen=True, kw_only=True)
class Entropy:
    """Forks a play before a turn that began less certain than its first turn (ARPO: Dong et al. 2025, arXiv:2507.19849,
    section 3.1, "entropy-based adaptive rollout").

    After a turn, its entropy is that of its first `tokens` tokens, in nats a token, and the jump is how far it is above
    the first turn's. Each of `width` - 1 branches then begins before the turn with the probability `probability` +
    `weight` * jump, within 0 and 1. With a `penalty` above 0, each fork on the way there takes away as large a part of
    the probability, so that one path does not use the whole budget (AEPO: Dong et al. 2025, arXiv:2510.14545). The
    first turn itself never forks: that would be another root.

    In place of the entropy of the whole distribution, which samplers do not return, stands minus the log-probability of
    the tokens that were sampled, whose mean it is. The authors' code divides it by the logarithm of the ten most likely
    tokens that it looks at; a budget that is not used up is filled with further plays from the start, here it is not.
    """

    width: Annotated[int, Range(2)] = 2
    probability: Annotated[float, Range(0, 1)] = 0.5
    weight: Annotated[float, Range(0)] = 0.2
    tokens: Annotated[int, Range(1)] = 20
    penalty: Annotated[float, Range(0, 1)] = 0.0
    leaves: Annotated[int, Range(2)] = 8

    unverified = "copies of the authors' code and accounts of both papers were read, not their text"

    def __call__(self, point: BranchPoint) -> Sequence[Fork]:
        turns = list(point.turns())
        last = len(turns) - 1
        if last < 1 or last < point.began or len(turns) != point.turn:
            return ()
        jump = self._entropy(turns[last]) - self._entropy(turns[0])
        kept = max(0.0, 1 - self.penalty * point.forks)
        chance = float(np.clip(self.probability + self.weight * jump, 0, 1)) * kept
        count = int((point.rng.random(self.width - 1) < chance).sum())
        return (Fork(last, count, f"entropy {jump:+.2f} nats"),) if count else ()

    def _entropy(self, turn: Turn) -> float:
        logprobs = turn.sample.logprobs[: self.tokens]
        return -float(logprobs.mean()) if len(logprobs) else 0.0
