"""A baseline for each seat, remembered from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from sojourn.config.registry import Range
from sojourn.credit.relative import seats, credit_trajectories, trajectory_returns
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class RAE:
    """Return less the moving average of the earlier returns of the same seat in the same world (role-conditioned
    advantage estimation of SPIRAL: Liu et al. 2025, arXiv:2506.24119, eq. 2).

    For seats that are not exchangeable, as in a zero-sum game, where one may win more often than another. The average
    begins at 0 and moves by 1 - `decay` for every trajectory, group by group within the step, each time after the
    group's credit is given, so that no return is part of its own baseline. With groups of one episode, as in the
    preset, that is the order of the authors' code, which moves it after each game; the episodes of a larger
    group have one baseline, and move it in no order. The authors' actors each have an average of their own, of the
    games that they play.
    """

    decay: Annotated[float, Range(0, below=1)] = 0.95
    _average: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        return [self._one(group, judged) for group, judged in zip(groups, scores, strict=True)]

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        names, found = [f"{group.task.env}/{seat}" for seat in seats(group)], trajectory_returns(judged)
        credit = credit_trajectories(group, found - np.array([self._average.get(name, 0.0) for name in names]))
        for name in dict.fromkeys(names):
            own = found[[other == name for other in names]]
            kept = self.decay ** len(own)  # as if each had moved it, in no order
            self._average[name] = kept * self._average.get(name, 0.0) + (1 - kept) * float(np.mean(own))
        return credit

    def state(self) -> Mapping[str, Any]:
        return dict(self._average)

    def restore(self, state: Mapping[str, Any]) -> None:
        self._average.clear()
        self._average.update(state)
