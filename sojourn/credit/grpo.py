"""Group-relative policy optimisation's advantage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from sojourn.registry import Range
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class GRPO:
    """Return minus the group's mean return, over its deviation (Shao et al. 2024, arXiv:2402.03300, section 4.1.2).

    `deviation = false` gives the unscaled advantage of Dr. GRPO (Liu et al. 2025, arXiv:2503.20783, section 3.2). The
    deviation is the population's (ddof = 0), and a group of equal returns gets zero credit. Assumes that the
    episodes of a group are exchangeable.
    """

    deviation: bool = True
    epsilon: Annotated[float, Range(0)] = 1e-6

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        return [self._one(group, judged) for group, judged in zip(groups, scores, strict=True)]

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        total = np.array([s.total for s in judged])  # (G,)
        if len(total) < 2 or np.ptp(total) == 0:
            gain = np.zeros_like(total)
        else:
            gain = (total - total.mean()) / (total.std() + self.epsilon if self.deviation else 1.0)
        return [Credit.uniform(t, float(g)) for t, g in zip(group.trajectories, gain, strict=True)]
