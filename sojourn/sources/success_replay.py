"""Recorded successes in groups that have no winner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from sojourn.config.fields import Range
from sojourn.record.episodes.labels import number_in_group
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.seeds import seed_of
from sojourn.sources.context import SourceContext, StageContext, require_policy_plays
from sojourn.sources.recorded import (
    YOUNGEST,
    entries_of,
    entries_state,
    label_number,
    recorded_group,
)
from sojourn.sources.wrapped import WrappedGroups, WrappedSource, with_episode
from sojourn.types import Group, Score

ENTRY = np.dtype([("step", "i4"), ("slot", "i4"), ("task", "u8"), ("number", "i4"), ("label", "u4")])
ANY_AGE = 1 << 30  # steps


@dataclass(frozen=True, kw_only=True)
class SuccessReplay(WrappedSource):
    """The groups of `base`, mostly live ones; in a group without a winner, one failure is replaced by a success of the
    same task that was played earlier in the stage (ARPO: Lu et al. 2025, arXiv:2505.16282).

    So a group whose rewards would all be equal has a signal. As in the authors' code, the success is a random one of
    the task's last `per_task`, and one episode of the group gives way; there it is the first, and the group has no
    winner where the mean reward is below 0.2 and its standard deviation below 0.05, here where no episode succeeded.
    Of the paper's texts the abstract was read. The success keeps its rewards, its tokens and the log-probabilities of
    the weights that sampled it, so that losses need a ratio, as with `replay`. Successes that are older than `max_age`
    steps are not used (0: of any age), nor are those of the last step, which are still being written. The last
    `capacity` successes are known, in 24 bytes each; their episodes are in the run's records.
    """

    per_task: Annotated[int, Range(1)] = 8
    max_age: Annotated[int, Range(0)] = 0
    capacity: Annotated[int, Range(1, 1 << 24)] = 1 << 16

    @property
    def max_lag(self) -> int:
        return self.max_age or ANY_AGE

    async def check(self, stage: StageContext) -> None:
        await super().check(stage)
        if self.live:
            require_policy_plays(stage, "success_replay", SuccessReplay)

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> SuccessReplayGroups:
        return SuccessReplayGroups(self.base.bind(context, stage, steps, first), context, stage, self)


@dataclass
class SuccessReplayGroups(WrappedGroups):
    """Knows where each success of the stage is recorded."""

    config: SuccessReplay
    entries: NDArray[Any] = field(default_factory=lambda: np.zeros(0, ENTRY))
    _step: int = 0
    _replaced: int = 0

    async def take(self, step: int) -> list[Group]:
        self._step = step
        return await super().take(step)

    async def changed(self, step: int, scored: ScoredGroup) -> Group:
        group = scored.group
        numbers = sorted(set(group.owners))
        if len(numbers) < 2 or any(trajectory.success for trajectory in group.trajectories):
            return group
        success = self._success(step, group)
        if success is None:
            return group
        [episode] = success.group.episodes
        episode = replace(episode, id=f"{episode.id}#{step}-{group.slot}")  # as it may be in several groups
        changed = with_episode(scored, numbers[-1], episode, success.scores)
        self.context.rewards.remember(*changed)
        self._replaced += 1
        return changed.group

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        """Adds what succeeded in the present step, and drops the oldest where there is no more room."""
        super().observe(groups, scores)
        won = [
            (self._step, group.slot, int(group.task.id, 16), number_in_group(id), label_number(id))
            for group in groups
            if group.origin == "policy"
            for id in (group.episodes[owner].id for owner in _winners(group))
        ]
        self.entries = np.concatenate([self.entries, np.array(won, ENTRY)])[-self.config.capacity :]

    def metrics(self) -> Mapping[str, float]:
        """Returns in how many groups a failure was replaced since the last call."""
        count, self._replaced = self._replaced, 0
        return {**super().metrics(), "successes_replayed": float(count)}

    def state(self) -> Mapping[str, Any]:
        return {**super().state(), **entries_state(self.entries)}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.entries = entries_of(state, ENTRY)

    def _success(self, step: int, group: Group) -> ScoredGroup | None:
        """Returns a recorded success of a group's task with its scores, None where there is none."""
        age = step - self.entries["step"].astype(np.int64)
        known = self.entries["task"] == np.uint64(int(group.task.id, 16))
        places = np.flatnonzero(known & (age >= YOUNGEST) & (age <= self.config.max_lag))[-self.config.per_task :]
        if not len(places):
            return None
        rng = np.random.default_rng(seed_of(self.context.runner.seed, self.stage, "success", step, group.slot))
        entry = self.entries[places[rng.integers(len(places))]]
        record = recorded_group(self.context.episodes, self.stage, int(entry["step"]), entry)
        scored = ScoredGroup(record.group, list(record.scores))
        won = [n for n in _winners(record.group) if number_in_group(record.group.episodes[n].id) == entry["number"]]
        return scored.select(won) if won else None


def _winners(group: Group) -> list[int]:
    """Returns the numbers of a group's episodes in which every trained seat succeeded."""
    lost = {owner for owner, t in zip(group.owners, group.trajectories, strict=True) if not t.success}
    return sorted(set(group.owners) - lost)
