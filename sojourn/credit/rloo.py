"""Leave-one-out baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class RLOO:
    """Return minus the mean return of the group's *other* episodes (Ahmadian et al. 2024, arXiv:2402.14740, eq. 6).

    Unbiased for any group of two or more; a group of one gets zero credit. Assumes the episodes of a group are
    exchangeable: not for the seats of a zero-sum game.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        return [self._one(group, judged) for group, judged in zip(groups, scores, strict=True)]

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        total = np.array([s.total for s in judged])  # (G,)
        others = (total.sum() - total) / max(len(total) - 1, 1)
        gain = total - others if len(total) > 1 else np.zeros_like(total)
        return [Credit.uniform(t, float(g)) for t, g in zip(group.trajectories, gain, strict=True)]
