"""The same advantage for every token, for imitation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.config.fields import Range
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Advantage `value` for every token of the trajectories whose return is above `threshold`, and 0 for the others.

    Without a threshold every token gets `value`. With the loss `nll` this is behaviour cloning; with a threshold,
    filtered behaviour cloning, which imitates successful trajectories only. A negative value is refused, as what is
    made less likely without a bound is not imitation; losses of preferences do that with a bound.
    """

    value: Annotated[float, Range(0)] = 1.0
    threshold: float | None = None

    needs = frozenset[str]()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        return [
            [Credit.uniform(t, self._advantage(score)) for t, score in zip(group.trajectories, of_group, strict=True)]
            for group, of_group in zip(groups, scores, strict=True)
        ]

    def _advantage(self, score: Score) -> float:
        return self.value if self.threshold is None or score.total > self.threshold else 0.0
