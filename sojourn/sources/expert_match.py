"""Compares what the policy does with what an expert does in the same state, turn by turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sojourn.types import Score, Turn

MATCHED, TYPE_MATCHED = "matched", "type_matched"  # in a turn's info: whether its action, or its kind, is the expert's
EXPERT_PROGRESS = (
    "expert_progress"  # in the last turn's: the fraction of the expert's turns before the first that differs
)


def matched_returns(turns: Sequence[Turn], score: Score, discount: float) -> NDArray[np.float64]:
    """Returns the discounted return of each turn until the first that differs from the expert: (T,).

    A turn that differs has its own reward alone, and turns before it have none of it, as what followed is the expert's
    merit. Turns that were compared with no expert count as equal.
    """
    following, returns = 0.0, score.turns.astype(np.float64)
    for place in reversed(range(len(returns))):
        same = turns[place].info.get(MATCHED, 1.0) > 0
        returns[place] += discount * following if same else 0.0
        following = returns[place] if same else 0.0
    return returns
