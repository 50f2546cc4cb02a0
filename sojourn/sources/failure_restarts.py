"""Groups that begin shortly before an episode failed, to be played on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from sojourn.config.fields import Range
from sojourn.errors import ConfigError
from sojourn.protocols import Env
from sojourn.record.episodes.labels import number_in_group
from sojourn.seeds import seed_of
from sojourn.sources.context import SourceContext, StageContext, require_policy_plays
from sojourn.sources.recorded import (
    YOUNGEST,
    entries_of,
    entries_state,
    label_number,
    recorded_group,
)
from sojourn.sources.segments import PrefixSampler, segment
from sojourn.types import Episode, Group, Score

ENTRY = np.dtype(
    [
        ("step", "i4"), ("slot", "i4"), ("task", "u8"), ("number", "i4"), ("turn", "i4"), ("uses", "i4"),
        ("label", "u4"),
    ]
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FailureRestarts:
    """`width` groups per step of `size` episodes that the policy plays on from `turns_before` turns before an earlier
    episode of the stage ended without success (after the replay of clipped collision episodes of Huang et al. 2023,
    arXiv:2309.13285, whose abstract and code were read).

    The recorded actions are played again in a new world, and the policy goes on from there; only its new turns are
    trained, with the recorded ones as their context. So hard moments are practised without what leads to them. One
    failure of each group is kept, the newest `capacity` in all, and each is used `max_uses` times, as in the authors'
    code (20 and 10), in which an episode begins from a copy of the simulator 1.5 s before the collision, with a
    probability where here a step has so many such groups. The last step's failures are not used, as they are still
    being written.
    """

    width: Annotated[int, Range(1)] = 2
    size: Annotated[int, Range(1)] = 8
    turns_before: Annotated[int, Range(1)] = 2
    capacity: Annotated[int, Range(1, 1 << 20)] = 20
    max_uses: Annotated[int, Range(1)] = 10

    live = False
    origin = "failure_restarts"
    gives_samples = True

    def tasks(self, steps: int) -> int:
        return 0

    async def check(self, stage: StageContext) -> None:
        if not stage.groups.live:
            raise ConfigError(
                f"stage '{stage.name}': failure_restarts has no failures to begin from where the policy plays no "
                "groups: mix it with live ones, such as groups = {name = 'mixed', parts = [{name = 'slots'}, {name = "
                "'failure_restarts'}]}"
            )
        require_policy_plays(stage, "failure_restarts", FailureRestarts)

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> FailureRestartGroups:
        return FailureRestartGroups(self, context, stage)


@dataclass
class FailureRestartGroups:
    """Knows where failures of the stage are recorded, and how often each was begun from."""

    config: FailureRestarts
    context: SourceContext
    stage: str
    entries: NDArray[Any] = field(default_factory=lambda: np.zeros(0, ENTRY))
    _step: int = 0
    _won: list[bool] = field(default_factory=list[bool])

    async def take(self, step: int) -> list[Group]:
        self._step = step
        rng = np.random.default_rng(seed_of(self.context.runner.seed, self.stage, "restarts", step))
        old = np.flatnonzero(step - self.entries["step"] >= YOUNGEST)
        places = rng.permutation(old)[: self.config.width]
        self.entries["uses"][places] += 1
        chosen = self.entries[places]
        self.entries = self.entries[self.entries["uses"] < self.config.max_uses]
        return await asyncio.gather(*(self._play(step, number, entry) for number, entry in enumerate(chosen)))

    async def close(self) -> None:
        """Does nothing: nothing is left running."""

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        """Adds a failure of each group that the policy played in the present step."""
        found = [(self._step, *entry) for group in groups if (entry := self._failure(group)) is not None]
        self.entries = np.concatenate([self.entries, np.array(found, ENTRY)])[-self.config.capacity :]

    def metrics(self) -> Mapping[str, float]:
        """Returns the success of the episodes that began before a failure, since the last call."""
        won, self._won = self._won, []
        return {"restart_success": float(np.mean(won))} if won else {}

    def state(self) -> Mapping[str, Any]:
        return entries_state(self.entries)

    def restore(self, state: Mapping[str, Any]) -> None:
        self.entries = entries_of(state, ENTRY)

    def _failure(self, group: Group) -> tuple[int, int, int, int, int, int] | None:
        """Returns where the group's first failure is that has turns enough, and the turn to go on from."""
        for episode in group.episodes if group.origin == "policy" else ():
            [trajectory] = episode.trajectories if len(episode.trajectories) == 1 else [None]
            if episode.error is not None or trajectory is None or trajectory.success:
                continue
            if (turn := len(trajectory.turns) - self.config.turns_before) > 0:
                number, label = number_in_group(episode.id), label_number(episode.id)
                return group.slot, int(group.task.id, 16), number, turn, 0, label
        return None

    async def _play(self, step: int, number: int, entry: Any) -> Group:
        runner, samplers = self.context.runner, dict[str, PrefixSampler]()
        slot = int(entry["slot"])
        record = recorded_group(self.context.episodes, self.stage, int(entry["step"]), entry)
        [failed] = [e for e in record.group.episodes if number_in_group(e.id) == entry["number"]]

        def sampler_for(env: Env, label: str) -> PrefixSampler:
            samplers[label] = PrefixSampler.of(runner.sampler, failed.trajectories[0], int(entry["turn"]))
            return samplers[label]

        label = f"{self.stage}/restart/{step}-{number}"
        group = await runner.play_group(
            record.group.task, slot, self.config.size, self.context.params, label, sampler_for=sampler_for
        )
        cut = [_cut(episode, samplers[f"{label}/{n}"].returned) for n, episode in enumerate(group.episodes)]
        self._won += [t.success for episode in cut for t in episode.trajectories if episode.error is None]
        return replace(group, episodes=tuple(cut), origin=self.config.origin)


def _cut(episode: Episode, first: int) -> Episode:
    """Returns an episode without its first turns; one that has no others is not trained."""
    trajectories = [
        segment(t, first) if len(t.turns) > first else replace(t, trainable=False) for t in episode.trajectories
    ]
    return replace(episode, trajectories=tuple(trajectories)) if episode.error is None else episode
