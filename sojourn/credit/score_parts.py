"""What trajectories are compared by: their reward, or a part of it, such as what a judge or a person said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import ConfigError
from sojourn.types import Score


def compared(scores: Sequence[Sequence[Score]], part: str) -> list[NDArray[np.float64]]:
    """Returns what the trajectories of each group are compared by: their rewards, or their `part` of `Score.parts`,
    which is NaN where a score does not have it. Raises `ConfigError` where no score of the step has it."""
    known = {name for of_group in scores for score in of_group for name in score.parts}
    if part and part not in known and any(scores):
        raise ConfigError(
            f"part = '{part}': no score of the step has it; they have {', '.join(sorted(known)) or 'none'}: name one "
            "of these, or use a reward that gives it"
        )
    return [
        np.array([score.parts.get(part, np.nan) if part else score.total for score in of_group], dtype=np.float64)
        for of_group in scores
    ]
