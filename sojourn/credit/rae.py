"""A baseline for each seat, remembered from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from sojourn.config.registry import Range
from sojourn.credit.relative import seats, spread, totals
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class RAE:
    """Return less the moving average of the returns of the same seat in the same world (role-conditioned advantage
    estimation of SPIRAL: Liu et al. 2025, arXiv:2506.24119, eq. 2).

    For seats that are not exchangeable, as in a zero-sum game, where one may win more often than another. The average
    moves by 1 - `decay` for every trajectory, once a step's credit is given: the paper lets it move within the step.
    """

    decay: Annotated[float, Range(0, below=1)] = 0.95
    _average: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        found: dict[str, list[float]] = {}
        credit: list[list[Credit]] = []
        for group, judged in zip(groups, scores, strict=True):
            names = [f"{group.task.env}/{seat}" for seat in seats(group)]
            credit.append(spread(group, totals(judged) - np.array([self._average.get(name, 0.0) for name in names])))
            for name, total in zip(names, totals(judged), strict=True):
                found.setdefault(name, []).append(float(total))
        for name, some in found.items():
            kept = self.decay ** len(some)  # as if each had moved it, in no order
            self._average[name] = kept * self._average.get(name, 0.0) + (1 - kept) * float(np.mean(some))
        return credit

    def state(self) -> Mapping[str, Any]:
        return dict(self._average)

    def restore(self, state: Mapping[str, Any]) -> None:
        self._average.clear()
        self._average.update(state)
