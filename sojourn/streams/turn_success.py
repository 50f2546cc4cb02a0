"""How likely success is after each turn, by the plays that branched after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sojourn.credit.relative import Values, seats
from sojourn.credit.tree import leaves, paths
from sojourn.protocols import PerTurn, StepContext
from sojourn.streams.trainer_passes import at_last_token
from sojourn.types import Group


@dataclass(frozen=True, kw_only=True)
class TurnSuccess:
    """The chance of success after each turn, at its last token: which fraction of the plays that share the turn
    succeeded or, with `estimate` = "hard", 1 where any did (soft and hard estimation of Math-Shepherd: Wang et al.
    2024, arXiv:2312.08935, eq. 3-4).

    With `change` it is how far the chance is above that before the turn, which for the first turn is the chance of all
    plays of the seat in the group: rewards that add up to the play's success minus that chance. The estimator `process`
    takes either as the rewards of turns; `masked` can leave out turns after which no play succeeded.

    Where no play forked after a turn, its chance is whether the play succeeded. The paper continues each step of a
    solution anew, with a model of its own, and trains a reward model on these labels; here they are of the policy's own
    plays, and are used as they are. Where the world does not say whether a play succeeded, a reward above 0 counts as
    success.
    """

    estimate: Literal["soft", "hard"] = "soft"
    change: bool = False

    provides = "turn_success"
    reference = False

    async def __call__(self, context: StepContext) -> PerTurn:
        return [at_last_token(group, self.chances(group)) for group in context.groups]

    def chances(self, group: Group) -> list[list[float]]:
        """Returns the number of each turn of each trajectory of a group: (T,) each."""
        won = np.array([trajectory.success for trajectory in group.trajectories], dtype=np.float64)
        names, sharing = np.array(seats(group), dtype=object), leaves(group)
        found: list[list[float]] = []
        for trajectory, path in zip(group.trajectories, paths(group), strict=True):
            chances = [self._chance(won[sharing[node]]) for node in path]
            before = [self._chance(won[names == trajectory.agent]), *chances]
            found.append(self._of_turns(chances, before))
        return found

    def _chance(self, won: Values) -> float:
        return float(won.max() if self.estimate == "hard" else won.mean())

    def _of_turns(self, chances: Sequence[float], before: Sequence[float]) -> list[float]:
        earlier = before if self.change else [0.0] * len(chances)
        return [after - one for after, one in zip(chances, earlier, strict=False)]
