"""Turn-level returns minus an agent-specific baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from sojourn.config.fields import Range
from sojourn.credit.by_turn import concatenated, credit_turns, returns_to_go, seats_of_turns
from sojourn.credit.relative import Values, per_label
from sojourn.finite import tolerance
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class MARS:
    """Return-to-go of each turn minus the mean of the distinct returns-to-go of the same seat, in the same world over
    the whole step or in the group (turn-level advantage with agent-specific normalisation of MARSHAL: Yuan et al. 2025,
    arXiv:2510.15414, by the authors' code).

    `baseline` says over which of the two ("step" or "group"). A value that many turns share counts once in the mean, so
    that neither long trajectories nor frequent outcomes move it; where all returns are equal the advantage is 0. The
    authors then bring the advantages of all seats together to mean 0 and standard deviation 1 over tokens: that is the
    estimator `whitened`, with this one as its base. Their code also centres and whitens rewards before it sums them,
    counts the 0 of padding among the values, and does not tell worlds apart; here returns that are equal but for
    rounding to 32 bits are one value.
    """

    baseline: Literal["step", "group"] = "step"
    discount: Annotated[float, Range(0, 1)] = 1.0

    needs = frozenset[str]()

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        labels = [
            (group.task.env if self.baseline == "step" else number, name)
            for number, group in enumerate(groups)
            for name in seats_of_turns(group)
        ]
        returns = [concatenated(returns_to_go(s, self.discount) for s in group_scores) for group_scores in scores]
        advantages = per_label(labels, concatenated(returns), _less_mean_of_distinct)
        by_group = np.split(advantages, np.cumsum([len(turns) for turns in returns])[:-1]) if groups else []
        return [credit_turns(group, turns) for group, turns in zip(groups, by_group, strict=True)]


def _less_mean_of_distinct(values: Values) -> Values:
    ordered = np.unique(values)
    distinct = ordered[np.diff(ordered, prepend=-np.inf) > tolerance(values)]
    return values - distinct.mean() if len(distinct) > 1 else np.zeros_like(values)
