"""Advantages scaled by the difficulty of their task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from sojourn.config.fields import Kind
from sojourn.credit.grpo import GRPO
from sojourn.credit.wrapped import Wrapped
from sojourn.types import Credit, Ending, Group, Score, Streams


def _dr_grpo() -> GRPO:
    return GRPO(scale_by_std=False)


@dataclass(frozen=True, kw_only=True)
class Difficulty(Wrapped):
    """Another estimator's advantages, multiplied by the task's difficulty over the step's mean difficulty (after the
    difficulty-aware scaling of GUI-G1: Zhou et al. 2025, arXiv:2505.15810).

    Difficulty is the number `task_key` of `Task.data`, or else the last number of this name in the `Turn.info` of the
    group's turns, which the world `grounding` gives: in the paper it grows as the box to be hit gets smaller. A group
    in which no trajectory got as far as an answer (all malformed or truncated) has no difficulty: it is neither scaled
    nor counted in the mean. Without `task_key`, difficulty is the fraction of the group's trajectories that failed,
    which is not the paper's. It goes with `aggregate.by = "constant"`.

    The authors' code multiplies the loss of each example by a number `rate` of its data, without dividing by a mean;
    how they made those numbers is not in it.
    """

    base: Annotated[Any, Kind("estimator")] = field(default_factory=_dr_grpo)
    task_key: str = ""

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        credits = self.base(groups, scores, streams)
        difficulties = np.array([self._difficulty(group) for group in groups])
        known = np.isfinite(difficulties)
        mean = float(difficulties[known].mean()) if known.any() else 0.0
        weights = np.where(known, difficulties / mean, 1.0) if mean > 0 else np.ones_like(difficulties)
        return [
            [replace(c, tokens=tuple((turn * weight).astype(np.float32) for turn in c.tokens)) for c in of_group]
            for of_group, weight in zip(credits, weights, strict=True)
        ]

    def _difficulty(self, group: Group) -> float:
        if self.task_key in group.task.data:
            return float(group.task.data[self.task_key])
        if self.task_key:
            return self._difficulty_in_turns(group)
        return 1 - float(np.mean([t.success for t in group.trajectories])) if group.trajectories else 0.0

    def _difficulty_in_turns(self, group: Group) -> float:
        """Returns the last number `task_key` in the group's turns; NaN where no trajectory got as far as an answer."""
        turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
        values = [turn.info[self.task_key] for turn in turns if self.task_key in turn.info]
        if not values and any(t.ending is Ending.DONE for t in group.trajectories):
            raise ValueError(
                f"task_key = '{self.task_key}': neither the data of the task in slot {group.slot} nor the info of a "
                "turn has this number: choose a world that gives it, such as grounding, or leave `task_key` out, "
                "which takes the fraction of failed episodes"
            )
        return float(values[-1]) if values else float("nan")
