"""Live groups with more episodes of hard tasks than of easy ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from sojourn.config.fields import Range
from sojourn.sources.context import SourceContext
from sojourn.sources.slots import LiveSlots, Slots
from sojourn.types import Group, Score, Task

MAX_TASKS = 1 << 16  # whose success rate is remembered: those that were played last


@dataclass(frozen=True, kw_only=True)
class AdaptiveSlots(Slots):
    """`slots` whose groups have fewer episodes where the task is often solved (dynamic rollout frequency of DART: Li et
    al. 2025, arXiv:2509.23866).

    A task is played `size` times until its success rate is above `threshold`, 0.6 as in the paper; from there on the
    number falls, in proportion to the rate, to `min_size` where it is always solved. The paper does not say in the
    accounts that were read how the number falls. The rate is the mean over the task's groups, of which each older one
    counts `decay` times as much as the next. A slot's size follows from what was observed when it began, and is part
    of checkpoints.
    """

    min_size: Annotated[int, Range(1)] = 2
    threshold: Annotated[float, Range(0, below=1)] = 0.6
    decay: Annotated[float, Range(0, 1)] = 0.7

    unverified = "accounts of the paper that give the threshold were read, not its text"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_size > self.size:
            raise ValueError(f"min_size = {self.min_size} with size = {self.size}: expected min_size <= size")

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> LiveAdaptiveSlots:
        return LiveAdaptiveSlots(self, context, stage, steps, first)

    def size_at(self, rate: float) -> int:
        """Returns how many episodes a task of a success rate is played."""
        easiness = max(rate - self.threshold, 0.0) / (1 - self.threshold)
        return self.size - math.floor(easiness * (self.size - self.min_size) + 1e-9)


@dataclass
class LiveAdaptiveSlots(LiveSlots):
    """Slots that know the success rates of the tasks that were played last, by id: (weighted successes, weight)."""

    config: AdaptiveSlots  # type: ignore[assignment]
    rates: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        super().observe(groups, scores)
        rates = dict(self.rates)  # slots that began keep those they began with
        for group in groups:
            if group.origin == "policy" and group.trajectories:
                won, weight = rates.pop(group.task.id, (0.0, 0.0))
                success = float(np.mean([trajectory.success for trajectory in group.trajectories]))
                rates[group.task.id] = self.config.decay * won + success, self.config.decay * weight + 1
        self.rates = dict(list(rates.items())[-MAX_TASKS:])

    def state(self) -> Mapping[str, Any]:
        ids, values = list(self.rates), np.array(list(self.rates.values()), dtype=np.float64)
        return {"slots": super().state(), "tasks": ids, "rates": values.reshape(-1, 2)}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state["slots"])
        self.rates = {id: (float(won), float(n)) for id, (won, n) in zip(state["tasks"], state["rates"], strict=True)}

    def _size_of(self) -> Callable[[Task], int]:
        rates = self.rates

        def size(task: Task) -> int:
            won, weight = rates.get(task.id, (0.0, 1.0))
            return self.config.size_at(won / weight)

        return size
