"""A population of tasks that grows by editing those from which most can be learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from sojourn.config.fields import Kind, Range
from sojourn.config.unused import refuse_unused
from sojourn.curricula.plr import PLR
from sojourn.curricula.population import Population
from sojourn.curricula.proposer import Proposer
from sojourn.curricula.proposers.edits import Edits
from sojourn.curricula.task_history import Array, TaskHistory
from sojourn.curricula.weighted import WeighsSplit, require_weighs, with_new
from sojourn.protocols import EnvFamily
from sojourn.types import Task


@dataclass(frozen=True, kw_only=True)
class Accel:
    """Plays a population of tasks, replays those from which most can be learned, and makes new ones of them by small
    edits: ACCEL (Parker-Holder et al. 2022, arXiv:2203.01302), which compounds complexity over prioritised level
    replay.

    The population begins with `start` random tasks of the split. At least the fraction `new` of the draws takes tasks
    that were never played, and the others are replayed as `base` weighs them. After each step, as many new tasks join
    as the next step plays: of these, a fraction `made` is proposed by `proposer` from tasks that are drawn as they
    would be replayed, and the rest is drawn at random from the first tasks of the split (`max_tasks` of `base`). A
    proposal counts as refused where the world finds it impossible to solve, where it is in the population already, or
    where it is one of the test split. Beyond `capacity` tasks, those leave that were played and that `base` weighs
    least. Tasks that were made have the tag "made". A world without `MakesTasks` is refused.

    A task that was made stays only if the success rate of its first groups is within `accept`, such as [0.1, 0.9]. It
    is the rule of XLand's dynamic task generation (Open-Ended Learning Team 2021, arXiv:2107.12808) for a control
    policy that never succeeds: a task is accepted if the agent rarely scores high, often does better than a control
    policy, and the control policy does badly. There agents and a random control play each proposal several times, and
    the thresholds evolve with the agents; of that paper the abstract and accounts by others were read.

    It differs from the authors' code in that all that is played is trained, new tasks included; that what can be
    learned of a task is measured by its newest group, not by a critic's errors; that a proposal joins before it was
    played, so that it may take the place of a better task; and that the tasks of a step are edited by their weights,
    while the authors edit the four easiest of those that were just replayed.
    """

    base: Annotated[WeighsSplit, Kind("curriculum")] = field(default_factory=PLR)
    proposer: Annotated[Proposer, Kind("proposer")] = field(default_factory=Edits)
    capacity: Annotated[int, Range(2, 65536)] = 256
    start: Annotated[int, Range(1, 65536)] = 32
    new: Annotated[float, Range(0, 1)] = 0.5
    made: Annotated[float, Range(0, 1)] = 0.8
    accept: tuple[Annotated[float, Range(0, 1)], Annotated[float, Range(0, 1)]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        require_weighs(self.base)
        if self.accept[0] > self.accept[1]:
            raise ValueError(
                f"accept = [{self.accept[0]:g}, {self.accept[1]:g}] accepts nothing: expected the lowest success rate "
                "first, then the highest"
            )
        if self.start > self.capacity:
            raise ValueError(
                f"start = {self.start} is above capacity = {self.capacity}: expected a population that holds the tasks "
                "that it begins with"
            )
        if isinstance(self.base, PLR):
            refuse_unused(self.base, ["schedule", "new"], "of the base, as `new` of accel says how many tasks are new")
        if self.base.split != "train":
            raise ValueError(
                f"split = '{self.base.split}' of the base: tasks can only be made for the training split, so leave it "
                "at 'train'"
            )

    @property
    def split(self) -> str:
        return self.base.split

    def bind(self, tasks: Sequence[Task], seed: int) -> Population:
        """Returns the curriculum without a world, which makes no tasks."""
        return Population(self, tasks, seed)

    def bind_world(self, world: EnvFamily, tasks: Sequence[Task], seed: int) -> Population:
        return Population(self, tasks, seed, world)

    def draw_weights(self, history: TaskHistory) -> Array:
        """Returns the probability of each task of the population to be drawn: (n,)."""
        share = max(self.new, float(np.mean(~history.seen)))
        weights = with_new(self.worth(history), history.seen, share)
        return (1 - self.base.uniform) * weights + self.base.uniform / max(len(weights), 1)

    def worth(self, history: TaskHistory) -> Array:
        """Returns what the base says each task of the population is worth: (n,)."""
        return np.nan_to_num(np.asarray(self.base.weights(history), dtype=np.float64))
