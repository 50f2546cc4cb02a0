"""1 where a trajectory passes, and each of its turns does too."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from sojourn.composite import HasBases
from sojourn.config.registry import SOME, Kind
from sojourn.rewards.native import Native
from sojourn.types import Group, Score, Trajectory


def _refusals() -> Native:
    return Native(scale=0.0, malformed=-1.0)


@dataclass(frozen=True, kw_only=True)
class Verified(HasBases):
    """At the last turn, 1 for a trajectory that `base` pays more than `threshold` and no turn of which fails, else 0
    (hierarchical verifiers of DeepTravel: Ning et al. 2025, arXiv:2509.21842).

    `base` looks first. What it fails is not shown to `turns`, another reward, which is asked for the rest: a turn fails
    that it pays less than 0, or whose number `by` in `Turn.info` is 0. `turns` judges all turns of a trajectory, also
    after the first that fails; one that compares trajectories sees those alone that passed. The paper's verifiers are
    language models, ours any two rewards. The source is the abstract, which gives the order, and accounts of the paper;
    that it gives exactly 0 and 1 is from those.
    """

    base: Annotated[Any, Kind("reward")] = field(default_factory=Native)
    turns: Annotated[Any, Kind("reward")] = field(default_factory=_refusals)
    threshold: float = 0.0
    info_key: Annotated[str, SOME] = "verified"

    bases: ClassVar[tuple[str, ...]] = ("base", "turns")
    unverified: ClassVar[str] = "the paper's abstract and accounts of it were read, not how its verifiers score"

    async def __call__(self, group: Group) -> list[Score]:
        judged = await self.base(group)
        passed = [score.total > self.threshold for score in judged]
        rest = _only(group, passed)
        looked = iter(await self.turns(rest) if rest.episodes else [])
        failed = [self._failed(t, next(looked)) if ok else 0 for t, ok in zip(group.trajectories, passed, strict=True)]
        return [_scored(*of) for of in zip(judged, passed, failed, strict=True)]

    def _failed(self, trajectory: Trajectory, looked: Score) -> int:
        """How many turns do."""
        both = zip(trajectory.turns, looked.turns, strict=True)
        return sum(bool(paid < 0) or not turn.info.get(self.info_key, 1.0) for turn, paid in both)


def _scored(judged: Score, passed: bool, failed: int) -> Score:
    whole = float(passed and not failed)
    turns = np.zeros(len(judged.turns), dtype=np.float32)
    turns[-1:] = whole
    parts = {**judged.parts, "passed": float(passed), "turns_failed": float(failed), "verified": whole}
    return Score(turns, parts, judged.words)


def _only(group: Group, wanted: list[bool]) -> Group:
    """The group with some of its trajectories to judge; the other seats of their episodes stay, as those of others."""
    chosen = iter(wanted)
    kept = []
    for episode in group.episodes:
        if episode.error is None:
            seats = tuple(replace(t, trainable=t.trainable and next(chosen)) for t in episode.trajectories)
            if any(seat.trainable for seat in seats):
                kept.append(replace(episode, trajectories=seats))
    return replace(group, episodes=tuple(kept))
