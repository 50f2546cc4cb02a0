"""The reward at the end, discounted towards the beginning, beside that of all turns of the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from sojourn.config.registry import Range
from sojourn.credit.relative import GroupEstimator, concatenated, returns_to_go, seats_of_turns, credit_turns, standardised, per_label
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True, kw_only=True)
class EAPO(GroupEstimator):
    """Each turn's discounted return, standardised over all turns of the group (efficiency-aware policy optimisation of
    IterResearch: Chen et al. 2025, arXiv:2511.07327, eq. 3 and the text under eq. 5).

    The paper pays at the end alone, so a turn's return is discount^(T - t) R: of two that succeed, the shorter is
    better. It goes with `gspo` by turns and `aggregate.by = "turn"`. Its down-sampling to a multiple of the number of
    devices (eq. 4) has no counterpart: nothing here is padded to one.
    """

    discount: Annotated[float, Range(0, 1)] = 0.995
    epsilon: Annotated[float, Range(0)] = 1e-6

    min_group_size: ClassVar[int] = 1

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        worth = concatenated(returns_to_go(score, self.discount) for score in judged)
        return credit_turns(group, per_label(seats_of_turns(group), worth, partial(standardised, epsilon=self.epsilon)))
