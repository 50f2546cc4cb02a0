"""A verifier of trajectories followed by a verifier of turns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np

from sojourn.composite import HasBases
from sojourn.config.fields import NONBLANK, Kind
from sojourn.protocols import Reward
from sojourn.rewards.native import Native
from sojourn.types import Group, Score, Trajectory


def _malformed_turns() -> Native:
    return Native(scale=0.0, malformed=-1.0)


@dataclass(frozen=True, kw_only=True)
class Verified(HasBases):
    """Reward 1, at the last turn, for a trajectory whose return under `base` is above `threshold` and all of whose
    turns pass, else 0 (hierarchical verifiers of DeepTravel: Ning et al. 2025, arXiv:2509.21842).

    `base` is the verifier of trajectories and comes first. The trajectories that fail it are not shown to `turns`, the
    verifier of turns, which is another reward: a turn fails if `turns` gives it less than 0, or if the number
    `info_key` of its `Turn.info` is 0. `turns` scores all turns of a trajectory, also those after the first failure; if
    it compares trajectories, it sees only those that passed. The paper's verifiers are language models, ours any two
    rewards. The source is the abstract, which gives the order, and accounts of the paper, from which it is that the
    reward is exactly 0 or 1.
    """

    base: Annotated[Reward, Kind("reward")] = field(default_factory=Native)
    turns: Annotated[Reward, Kind("reward")] = field(default_factory=_malformed_turns)
    threshold: float = 0.0
    info_key: Annotated[str, NONBLANK] = "verified"

    bases: ClassVar[tuple[str, ...]] = ("base", "turns")
    unverified = "the paper's abstract and accounts of it were read, not how its verifiers score"

    async def __call__(self, group: Group) -> list[Score]:
        scores = await self.base(group)
        passed = [score.total > self.threshold for score in scores]
        rest = _select_trajectories(group, passed)
        turn_scores = iter(await self.turns(rest) if rest.episodes else [])
        failures = [
            self._failed_turns(t, next(turn_scores)) if ok else 0
            for t, ok in zip(group.trajectories, passed, strict=True)
        ]
        return [_verdict(*arguments) for arguments in zip(scores, passed, failures, strict=True)]

    def _failed_turns(self, trajectory: Trajectory, turn_score: Score) -> int:
        """Returns how many turns of the trajectory fail."""
        turns = zip(trajectory.turns, turn_score.turns, strict=True)
        return sum(bool(reward < 0) or not turn.info.get(self.info_key, 1.0) for turn, reward in turns)


def _verdict(score: Score, passed: bool, failed_turns: int) -> Score:
    reward = float(passed and not failed_turns)
    turns = np.zeros(len(score.turns), dtype=np.float32)
    turns[-1:] = reward
    parts = {**score.parts, "passed": float(passed), "turns_failed": float(failed_turns), "verified": reward}
    return Score(turns, parts, score.words, outcome=None if len(turns) else reward)


def _select_trajectories(group: Group, selected: list[bool]) -> Group:
    """Returns the group with only the selected trajectories trainable, and without episodes that have none; the other
    seats of an episode stay, as those of opponents do."""
    remaining = iter(selected)
    kept = []
    for episode in group.episodes:
        if episode.error is None:
            seats = tuple(replace(t, trainable=t.trainable and next(remaining)) for t in episode.trajectories)
            if any(seat.trainable for seat in seats):
                kept.append(replace(episode, trajectories=seats))
    return replace(group, episodes=tuple(kept))
