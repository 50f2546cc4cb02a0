"""Advantages scaled by the difficulty of their task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from sojourn.config.fields import Kind
from sojourn.credit.grpo import GRPO
from sojourn.credit.relative import Values
from sojourn.credit.wrapped import Wrapped
from sojourn.protocols import Estimator
from sojourn.types import Credit, Ending, Group, Score, Streams


def _dr_grpo() -> GRPO:
    return GRPO(scale_by_std=False)


@dataclass(frozen=True, kw_only=True)
class Difficulty(Wrapped):
    """Another estimator's advantages, multiplied by a weight that grows with the task's difficulty (difficulty-aware
    scaling of GUI-G1: Zhou et al. 2025, arXiv:2505.15810, section 3.3 and appendix C.3).

    With `task_key` the difficulty d is the number of this name in `Task.data`, or else the last number of this name in
    the `Turn.info` of the group's turns, which the world `grounding` gives: the inverse of the box's relative size, as
    in the paper. The weight is the paper's 0.5 + (d - low) / (high - low), from 0.5 to 1.5, or 1 while all difficulties
    are equal. The paper takes low and high over its data; here they are those of the tasks so far, this step included,
    and are remembered. A group in which no trajectory got as far as an answer (all malformed or truncated) has no
    difficulty: it is not scaled.

    Without `task_key` the weight is not the paper's: the fraction of the group's trajectories that failed over the
    step's mean of it. The estimator goes with `aggregate.by = "constant"`, as the paper leaves out the division by
    lengths. In the authors' code the weight is a number of the data (`rate`), which multiplies the loss.
    """

    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=_dr_grpo)
    task_key: str = ""
    _extremes: list[float] = field(default_factory=list, init=False, repr=False, compare=False)  # least and greatest

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        credits = self.base(groups, scores, streams)
        weights = self._weights(np.array([self._difficulty(group) for group in groups], dtype=np.float64))
        return [
            [replace(c, tokens=tuple((turn * weight).astype(np.float32) for turn in c.tokens)) for c in of_group]
            for of_group, weight in zip(credits, weights, strict=True)
        ]

    def state(self) -> Mapping[str, Any]:
        return {**super().state(), "extremes": list(self._extremes)}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._extremes[:] = state.get("extremes", [])  # runs before 25 November 2026 have none

    def _weights(self, difficulties: Values) -> Values:
        known = np.isfinite(difficulties)
        if not self.task_key:
            mean = float(difficulties[known].mean()) if known.any() else 0.0
            return difficulties / mean if mean > 0 else np.ones_like(difficulties)
        so_far = [*self._extremes, *difficulties[known].tolist()]
        self._extremes[:] = [min(so_far), max(so_far)] if so_far else []
        if not so_far or min(so_far) == max(so_far):
            return np.ones_like(difficulties)
        low, high = self._extremes
        return np.where(known, 0.5 + (difficulties - low) / (high - low), 1.0)

    def _difficulty(self, group: Group) -> float:
        if self.task_key in group.task.data:
            return float(group.task.data[self.task_key])
        if self.task_key:
            return self._difficulty_in_turns(group)
        return 1 - float(np.mean([t.success for t in group.trajectories])) if group.trajectories else float("nan")

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
