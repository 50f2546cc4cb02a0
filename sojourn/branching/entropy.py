"""Forks where the policy was less certain than at its first turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.branching.budget import TreeBudget
from sojourn.branching.certainty import sampled_entropy
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.config.fields import Range


@dataclass(frozen=True, kw_only=True)
class Entropy(TreeBudget):
    """Forks a play before a turn that began less certain than its first turn (ARPO: Dong et al. 2025, arXiv:2507.19849,
    section 3.1, "entropy-based adaptive rollout").

    After a turn, its entropy is that of its first `tokens` tokens, in nats a token, and the jump is how far it is above
    the first turn's. Each of `width` - 1 branches then begins before the turn with the probability `probability` +
    `weight` * jump, within 0 and 1. With a `penalty` above 0, each fork on the way there takes away as large a part of
    the probability, so that one path does not use the whole budget (AEPO: Dong et al. 2025, arXiv:2510.14545). The
    first turn itself never forks: that would be another root.

    In place of the entropy of the whole distribution, which samplers do not return, stands minus the log-probability of
    the tokens that were sampled, whose mean it is. ARPO's code adds up that of the ten likeliest tokens over the first
    20, and divides the sum by the logarithm of the number of tokens in the vocabulary; it forks after a turn by that
    turn's entropy, when the world has answered. In AEPO's, the penalty is for rounds in a row in which any play of the
    question forked. Both fill a budget that is not used up with further plays from the start; here it is left. How
    many plays AEPO begins at the start, `balanced_entropy` decides.
    """

    width: Annotated[int, Range(2)] = 2
    probability: Annotated[float, Range(0, 1)] = 0.5
    weight: Annotated[float, Range(0)] = 0.2
    tokens: Annotated[int, Range(1)] = 20
    penalty: Annotated[float, Range(0, 1)] = 0.0

    def __call__(self, point: BranchPoint) -> Sequence[Fork]:
        turns = list(point.turns())
        last = len(turns) - 1
        if last < 1 or last < point.began or len(turns) != point.turn:
            return ()
        jump = sampled_entropy(turns[last], self.tokens) - sampled_entropy(turns[0], self.tokens)
        kept = max(0.0, 1 - self.penalty * point.forks)
        chance = float(np.clip(self.probability + self.weight * jump, 0, 1)) * kept
        count = int((point.rng.random(self.width - 1) < chance).sum())
        return (Fork(last, count, f"entropy {jump:+.2f} nats"),) if count else ()
