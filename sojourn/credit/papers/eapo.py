"""Returns-to-go of turns, standardised over the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from sojourn.config.fields import Range
from sojourn.credit.by_turn import concatenated, credit_turns, returns_to_go, seats_of_turns
from sojourn.credit.relative import GroupEstimator, per_label, standardised
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True, kw_only=True)
class EAPO(GroupEstimator):
    """Discounted return-to-go of each turn, standardised over all turns of the group (efficiency-aware policy
    optimisation of IterResearch: Chen et al. 2025, arXiv:2511.07327, eq. 3 and the text under eq. 5).

    The paper rewards the last turn only, so a turn's return is discount^(T - t) R: of two successful trajectories, the
    shorter one is better. It goes with the loss `gspo` with `level = "turn"` and with `aggregate.by = "turn"`. The
    paper's down-sampling to a multiple of the number of devices (eq. 4) has no counterpart, as nothing here is padded.
    """

    discount: Annotated[float, Range(0, 1)] = 0.995
    epsilon: Annotated[float, Range(0)] = 1e-6

    min_group_size = 1

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        returns = concatenated(returns_to_go(score, self.discount) for score in scores)
        normalise = partial(standardised, epsilon=self.epsilon)
        return credit_turns(group, per_label(seats_of_turns(group), returns, normalise))
