"""What the best fixed action would have earned more."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from sojourn.composite import HasBases
from sojourn.config.fields import NONBLANK, Kind
from sojourn.errors import ConfigError
from sojourn.protocols import Reward
from sojourn.regret_growth import regrets_so_far
from sojourn.rewards.native import Native
from sojourn.rollout.play import LOST
from sojourn.types import Ending, Episode, Group, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class Regret(HasBases):
    """Another reward, minus `coef` times the regret of the trajectory: how much more the best fixed action would have
    earned against what the others did. The part `regret` of its scores, and so the metric `part_regret`, measures it.

    The world computes the regret so far and tells it as the number `info_key` of a turn's `Turn.info`, or, where the
    policy has several seats, as SEAT_`info_key`; the last one of an episode counts. `online`, `bandit` and `matrix` do.
    With `per_round` it is divided by the number of the trajectory's turns, which is small for players without regret
    however long they play. With `coef = 0`, the default, it is only measured. The penalty is at the last turn, and part
    of the outcome. The plays of the regret-loss (estimator `regret_loss`) are scored by it alone: `coef = 1` and
    `base = { name = "native", scale = 0 }`.
    """

    base: Annotated[Reward, Kind("reward")] = field(default_factory=Native)
    coef: float = 0.0
    info_key: Annotated[str, NONBLANK] = "regret"
    per_round: bool = True

    async def __call__(self, group: Group) -> list[Score]:
        scores = await self.base(group)
        return [
            self._scored(trajectory, group.episodes[owner], score)
            for owner, trajectory, score in zip(group.owners, group.trajectories, scores, strict=True)
        ]

    def _scored(self, trajectory: Trajectory, episode: Episode, score: Score) -> Score:
        regret = self._regret(trajectory, episode)
        if regret is None:
            return score
        cost = self.coef * regret
        turns = score.turns.copy()
        turns[-1:] -= np.float32(cost)
        return replace(score, turns=turns, parts={**score.parts, "regret": regret}, outcome=score.result - cost)

    def _regret(self, trajectory: Trajectory, episode: Episode) -> float | None:
        """Returns the regret of a trajectory, None where the world told none.

        Raises `ConfigError` where the reward depends on it, and a whole play told none.
        """
        told = regrets_so_far(trajectory, episode, self.info_key)
        if told:
            return told[-1] / (len(trajectory.turns) if self.per_round and trajectory.turns else 1)
        lost = any(LOST in turn.info for one in episode.trajectories for turn in one.turns)
        if self.coef and trajectory.ending is Ending.DONE and not lost:
            of_seat = f"{trajectory.agent}_{self.info_key}"
            raise ConfigError(
                f"reward regret: the turns of {episode.task.env} have no number '{self.info_key}' or '{of_seat}': "
                "name one that the world gives with info_key, or use a world that tells regret, such as matrix"
            )
        return None
