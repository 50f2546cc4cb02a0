"""Budgets of episodes that grow over a stage: how many turns they may take, and how many tokens each turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sojourn.schedules import Schedule
from sojourn.types import Group


class Budget(NamedTuple):
    """The budget of an episode: its turns, and the sampled tokens of each."""

    turns: int
    max_tokens: int


@dataclass
class Horizon:
    """Decides the budgets of the episodes of a stage by schedules, which give the fraction of the `full` budget.

    With a `goal`, the schedules' clock counts the steps in which at least that fraction of the policy's episodes
    succeeded; without, all steps.
    """

    turns: Schedule
    max_tokens: Schedule
    goal: float
    full: Budget
    steps: int
    mastered: int = 0  # steps whose episodes reached the goal

    def budget(self, step: int) -> Budget:
        """Returns the budget of a slot of a step that starts now; at least one turn and one token."""
        clock = self.mastered if self.goal else step
        schedules = (self.turns, self.max_tokens)
        fractions = (min(1.0, schedule(clock, self.steps)) for schedule in schedules)
        pairs = zip(fractions, self.full, strict=True)
        return Budget(*(max(1, math.ceil(fraction * full - 1e-9)) for fraction, full in pairs))

    def observe(self, groups: Sequence[Group], origin: str) -> None:
        """Counts a step by its groups of an origin, which are those that were played in these budgets."""
        successes = [t.success for group in groups if group.origin == origin for t in group.trajectories]
        self.mastered += bool(successes) and sum(successes) >= self.goal * len(successes)
