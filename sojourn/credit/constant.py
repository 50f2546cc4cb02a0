"""The same credit for every token: imitation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Advantage `value` for every token whose trajectory's return is above `threshold`, else 0.

    With the `nll` loss this is behaviour cloning; with a threshold, filtered behaviour cloning (only what succeeded).
    """

    value: float = 1.0
    threshold: float | None = None

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        return [
            [Credit.uniform(t, self._of(score)) for t, score in zip(group.trajectories, judged, strict=True)]
            for group, judged in zip(groups, scores, strict=True)
        ]

    def _of(self, score: Score) -> float:
        return self.value if self.threshold is None or score.total > self.threshold else 0.0
