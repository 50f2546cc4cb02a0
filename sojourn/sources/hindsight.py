"""Failed episodes as episodes of another task: what was reached becomes what is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sojourn.abilities import Relabels
from sojourn.config.fields import Range
from sojourn.errors import ConfigError, RewardError
from sojourn.protocols import Env
from sojourn.record.episodes.labels import number_in_group
from sojourn.rewards.reward_cache import score_group
from sojourn.rollout.world import world_of, worlds_of
from sojourn.seeds import seed_of
from sojourn.sources.context import SourceContext, StageContext, require_policy_plays
from sojourn.sources.recorded import (
    YOUNGEST,
    entries_of,
    entries_state,
    label_number,
    recorded_group,
)
from sojourn.sources.segments import SampleReplay
from sojourn.types import Episode, Group, Score, Task

ENTRY = np.dtype([("step", "i4"), ("slot", "i4"), ("task", "u8"), ("number", "i4"), ("label", "u4")])


@dataclass(frozen=True, kw_only=True)
class Hindsight:
    """`width` groups per step of one episode each, which the policy played earlier in the stage for a task that no
    episode of its group solved, as episodes of a task that it did solve (Hindsight Experience Replay: Andrychowicz et
    al. 2017, arXiv:1707.01495, whose abstract, accounts and authors' code were read).

    The world says which tasks those are (see `Relabels`). With `goal` = "final" the last of them is taken, with
    "random" any, which the paper calls "final" and "episode"; its "future" chooses a goal for each transition, where
    here an episode has one. The episode is played again under its new task, so that the prompts ask for what was
    reached, and ends there; its actions are the recorded ones, with the log-probabilities of the weights and prompts
    that sampled them. One that does not succeed is left out and counted in `relabel_refused`, one that does in
    `relabelled`; neither is counted as played. In the paper a value function learns from them; here they are imitated,
    as in language models' hindsight (Zhang et al. 2023, arXiv:2302.05206, whose abstract was read), or trained with
    importance weights.

    A step draws from the last `capacity` failed episodes, at random, none that are older than `max_age` steps (0: of
    any age), and none of the last step, which are still being written.
    """

    width: Annotated[int, Range(1)] = 8
    goal: Literal["final", "random"] = "final"
    max_age: Annotated[int, Range(0)] = 20
    capacity: Annotated[int, Range(1, 1 << 24)] = 1 << 16

    live = False
    size = 1
    origin = "hindsight"
    gives_samples = True

    def tasks(self, steps: int) -> int:
        return 0

    async def check(self, stage: StageContext) -> None:
        if not stage.groups.live:
            raise ConfigError(
                f"stage '{stage.name}': hindsight has no episodes to relabel where the policy plays no groups: mix it "
                "with live ones, such as groups = {name = 'mixed', parts = [{name = 'slots'}, {name = 'hindsight'}]}"
            )
        if not any(isinstance(world, Relabels) for world in worlds_of(stage.env)):
            names = " and ".join(type(world).__name__ for world in worlds_of(stage.env))
            raise ConfigError(
                f"stage '{stage.name}': hindsight asks the world which tasks an episode would have solved, but {names} "
                "has no relabelled(episode): define it, choose another world, such as toy, or drop this source"
            )
        require_policy_plays(stage, "hindsight", Hindsight)

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> HindsightGroups:
        return HindsightGroups(self, context, stage)


@dataclass
class HindsightGroups:
    """Knows where the failed episodes of a stage are recorded, and plays them again as successes."""

    config: Hindsight
    context: SourceContext
    stage: str
    entries: NDArray[Any] = field(default_factory=lambda: np.zeros(0, ENTRY))
    _step: int = 0
    _relabelled: int = 0
    _refused: int = 0

    async def take(self, step: int) -> list[Group]:
        """Returns the relabelled episodes of a step, whose rewards are known already."""
        self._step = step
        rng = np.random.default_rng(seed_of(self.context.runner.seed, self.stage, self.config.origin, step))
        age = step - self.entries["step"].astype(np.int64)
        allowed = (age >= YOUNGEST) & ((age <= self.config.max_age) if self.config.max_age else True)
        chosen = self.entries[rng.permutation(np.flatnonzero(allowed))[: self.config.width]]
        played = await asyncio.gather(*(self._play(step, number, entry) for number, entry in enumerate(chosen)))
        groups = [group for group in played if group is not None]
        self._relabelled += len(groups)
        self._refused += len(played) - len(groups)
        return groups

    async def close(self) -> None:
        """Does nothing: nothing is left running."""

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        """Adds the episodes of the present step that failed and can be relabelled."""
        found = [
            (self._step, group.slot, int(group.task.id, 16), number_in_group(episode.id), label_number(episode.id))
            for group in groups
            if group.origin == "policy" and not any(trajectory.success for trajectory in group.trajectories)
            for episode in group.episodes
            if self._solved(episode)
        ]
        self.entries = np.concatenate([self.entries, np.array(found, ENTRY)])[-self.config.capacity :]

    def metrics(self) -> Mapping[str, float]:
        """Returns how many episodes were relabelled since the last call, and how many failed under their new task."""
        relabelled, refused = self._relabelled, self._refused
        self._relabelled = self._refused = 0
        return {"relabelled": float(relabelled), "relabel_refused": float(refused)}

    def state(self) -> Mapping[str, Any]:
        return entries_state(self.entries)

    def restore(self, state: Mapping[str, Any]) -> None:
        self.entries = entries_of(state, ENTRY)

    def _solved(self, episode: Episode) -> Sequence[Task]:
        """Returns the tasks that an episode would have solved; none of one that failed, or has several seats."""
        world = world_of(self.context.runner.family, episode.task)
        if episode.error is not None or len(episode.trajectories) != 1 or not isinstance(world, Relabels):
            return []
        return world.relabelled(episode)

    async def _play(self, step: int, number: int, entry: Any) -> Group | None:
        """Returns a recorded episode as one of another task, None where it does not succeed there."""
        record = recorded_group(self.context.episodes, self.stage, int(entry["step"]), entry)
        [episode] = [e for e in record.group.episodes if number_in_group(e.id) == entry["number"]]
        tasks, label = self._solved(episode), f"{self.stage}/{self.config.origin}/{step}-{number}"
        rng = np.random.default_rng(seed_of(self.context.runner.seed, label))
        chosen = tasks[-1 if self.config.goal == "final" else int(rng.integers(len(tasks)))]
        group = await self._replayed(chosen, int(entry["slot"]), label, episode)
        if not group.trajectories or not all(trajectory.success for trajectory in group.trajectories):
            return None
        try:
            scores = await score_group(self.context.rewards.reward, group)
        except RewardError:  # its server failed: the episode is left out
            return None
        self.context.rewards.remember(group, scores)
        return group

    async def _replayed(self, task: Task, slot: int, label: str, episode: Episode) -> Group:
        """Plays a task with the samples of an episode of another one."""
        samples = [turn.sample for turn in episode.trajectories[0].turns]

        def sampler_for(env: Env, label: str) -> SampleReplay:
            return SampleReplay(samples)

        group = await self.context.runner.play_group(task, slot, 1, self.context.params, label, sampler_for=sampler_for)
        return replace(group, origin=self.config.origin)
