"""What is paid from each turn on, beside that of all turns of the same seat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from sojourn.config.registry import Range
from sojourn.credit.relative import centred, joined, returns, seats_of_turns, spread_turns, within
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
        labels = [
            (group.task.env if self.over == "step" else number, name)
            for number, group in enumerate(groups)
            for name in seats_of_turns(group)
        ]
        worth = [joined(returns(score, self.discount) for score in judged) for judged in scores]
        gain = np.split(within(labels, joined(worth), centred), np.cumsum([len(turns) for turns in worth])[:-1])
        return [spread_turns(*of) for of in zip(groups, gain if groups else [], strict=True)]
