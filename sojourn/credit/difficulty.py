"""Another estimator's advantages, by how hard the task is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from sojourn.config.registry import Kind
from sojourn.credit.grpo import GRPO
from sojourn.credit.wrapped import Wrapped
from sojourn.types import Credit, Ending, Group, Score, Streams


def _plain() -> GRPO:
    return GRPO(scale_by_std=False)


@dataclass(frozen=True, kw_only=True)
class Difficulty(Wrapped):
    """Another estimator's advantages times the task's difficulty, over the step's mean difficulty (after the
    difficulty-aware scaling of GUI-G1: Zhou et al. 2025, arXiv:2505.15810).

    Difficulty is the number `by` of `Task.data`, or else the last that the group's turns tell in `Turn.info`, as the
    world `grounding` does: in the paper it grows as the box to be hit gets smaller. A group none of whose trajectories
    came to be judged (all malformed or truncated) has none, and is neither scaled nor counted in the mean. Without
    `by`, difficulty is the share of the group's trajectories that failed, which is not the paper's. It goes with
    `aggregate.by = "constant"`.

    The authors' code multiplies each example's loss by a number `rate` of its data, without dividing by a mean; how
    they made those numbers is not in it.
    """

    base: Annotated[Any, Kind("estimator")] = field(default_factory=_plain)
    task_key: str = ""

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        credit = self.base(groups, scores, streams)
        hard = np.array([self._of(group) for group in groups])
        known = np.isfinite(hard)
        mean = float(hard[known].mean()) if known.any() else 0.0
        weights = np.where(known, hard / mean, 1.0) if mean > 0 else np.ones_like(hard)
        return [
            [replace(c, tokens=tuple((turn * weight).astype(np.float32) for turn in c.tokens)) for c in some]
            for some, weight in zip(credit, weights, strict=True)
        ]

    def _of(self, group: Group) -> float:
        if self.task_key in group.task.data:
            return float(group.task.data[self.task_key])
        if self.task_key:
            return self._told(group)
        return 1 - float(np.mean([t.success for t in group.trajectories])) if group.trajectories else 0.0

    def _told(self, group: Group) -> float:
        """The last number `by` that a turn of the group tells; NaN where none came to be judged."""
        told = [turn.info[self.task_key] for t in group.trajectories for turn in t.turns if self.task_key in turn.info]
        if not told and any(t.ending is Ending.DONE for t in group.trajectories):
            raise ValueError(
                f"task_key = '{self.task_key}': neither the data of the task in slot {group.slot} nor the info of any turn "
                "holds this number: choose a world that gives it, such as grounding, or leave `task_key` out, which "
                "takes the fraction of failed episodes"
            )
        return float(told[-1]) if told else float("nan")
