"""What is paid from each turn on, beside that of all turns of the same seat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from sojourn.credit.relative import centred, returns, seats, within
from sojourn.registry import Range
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class MARS:
    """Each turn's return, less the mean return of all turns of the same seat: in the same world over the whole step, or
    in the group (turn-level advantage with agent-specific normalisation: Yuan et al. 2025, arXiv:2510.15414).

    Made from an account of the paper, as its text was not to be had, and from the authors' code, which also
    centres rewards before it adds them up, and whitens. Long trajectories count more in the mean.
    """

    over: Literal["step", "group"] = "step"
    discount: Annotated[float, Range(0, 1)] = 1.0

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        found = [[returns(score, self.discount) for score in judged] for judged in scores]
        labels = [
            (group.task.env if self.over == "step" else number, name)
            for number, (group, some) in enumerate(zip(groups, found, strict=True))
            for name, turns in zip(seats(group), some, strict=True)
            for _ in turns
        ]
        every = np.concatenate([np.zeros(0), *(turns for some in found for turns in some)])
        gain, place = within(labels, every, centred), 0
        credit: list[list[Credit]] = []
        for group in groups:
            credit.append([])
            for trajectory in group.trajectories:
                stop = place + len(trajectory.turns)
                credit[-1].append(Credit.per_turn(trajectory, gain[place:stop]))
                place = stop
        return credit
