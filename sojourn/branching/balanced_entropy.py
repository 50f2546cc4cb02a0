"""Divides plays between the start of a task and branches by the entropy of a first play."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from sojourn.branching.certainty import sampled_entropy
from sojourn.branching.entropy import Entropy
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.config.fields import Range


@dataclass(frozen=True, kw_only=True)
class BalancedEntropy(Entropy):
    """Plays a task once, and then decides how many of `leaves` plays begin at its start; the others are branches where
    these are uncertain, as with `entropy` (the entropy pre-monitoring of AEPO: Dong et al. 2025, arXiv:2510.14545).

    Of k = `leaves` plays, m = k sigmoid(`sensitivity` (H_root - H_tool)) begin at the start, rounded down, and one
    more, as in the authors' code; H_root is the entropy of the first play's first turn, H_tool the mean of its others,
    each over the first `tokens` tokens, in nats a token. The first play is one of the m, and does not fork; the other
    ones, at least one, divide the k - m branches evenly. Meant for groups of `size` = 1: each play of the group is the
    first of k. A play from the start is recorded as a branch that shares no turn.

    In the authors' code the first play is not trained, and `penalty` is 0.05 for each round in a row in which any play
    of the question forked; here it is for each fork on the path. An account of the paper and that code were read.
    """

    sensitivity: Annotated[float, Range(0)] = 0.5

    def __call__(self, point: BranchPoint) -> Sequence[Fork]:
        return super().__call__(replace(point, forks=point.forks - 1)) if point.forks else ()

    def after_round(self, number: int, plays: Sequence[BranchPoint]) -> Sequence[Fork]:
        return [self._starts(play, at) for at, play in enumerate(plays) if play.turn] if number == 1 else ()

    def _starts(self, play: BranchPoint, number: int) -> Fork:
        root, *later = [sampled_entropy(turn, self.tokens) for turn in play.turns()] or [0.0]
        gap = root - sum(later) / len(later) if later else 0.0
        share = 0.5 * (1 + math.tanh(self.sensitivity * gap / 2))  # the sigmoid
        starts = min(max(int(self.leaves * share) + 1, 2), self.leaves)
        return Fork(0, starts - 1, f"from the start: {gap:+.2f} nats", number)
