"""What group sources share that change the groups of another source, once these have their rewards."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from sojourn.abilities import (
    Branches,
    Checks,
    GivesSamples,
    GroupQueue,
    Measured,
    Mixes,
    Observes,
    asks_critic,
    group_size,
    max_lag,
    origin_of,
    play_lag,
    queue_of,
)
from sojourn.config.fields import Kind
from sojourn.protocols import Source, SourceConfig, Stateful
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.sources.context import SourceContext, StageContext
from sojourn.sources.slots import Slots
from sojourn.types import Episode, Group, Score


@dataclass(frozen=True, kw_only=True)
class WrappedSource:
    """Base of the configs of such sources: width, size, lag, tasks and whether plays fork are those of the `base`."""

    base: Annotated[SourceConfig[SourceContext], Kind("groups")] = field(default_factory=Slots)

    def __post_init__(self) -> None:
        if isinstance(self.base, Mixes):
            raise ValueError("base is mixed: name one source as the base, and mix this one with the others")

    @property
    def width(self) -> int:
        return self.base.width

    @property
    def live(self) -> bool:
        return self.base.live

    @property
    def size(self) -> int | None:
        return group_size(self.base)

    @property
    def forks(self) -> bool:
        return isinstance(self.base, Branches) and self.base.forks

    @property
    def gives_samples(self) -> bool:
        return isinstance(self.base, GivesSamples) and self.base.gives_samples

    @property
    def asks_critic(self) -> bool:
        return asks_critic(self.base)

    @property
    def max_lag(self) -> int:
        return max_lag(self.base)

    @property
    def play_lag(self) -> int:
        return play_lag(self.base)

    @property
    def origin(self) -> str:
        return origin_of(self.base)

    def tasks(self, steps: int) -> int:
        return self.base.tasks(steps)

    async def check(self, stage: StageContext) -> None:
        if isinstance(self.base, Checks):
            await self.base.check(stage)


@dataclass
class WrappedGroups:
    """Base of such sources: `changed` returns what a step trains in place of a group of the `base`.

    The rewards of the base's groups are known by then, and these are what was played; the scores of those that take
    their place are to be told to `context.rewards.remember`, as they are not scored again.
    """

    base: Source
    context: SourceContext
    stage: str

    @abstractmethod
    async def changed(self, step: int, scored: ScoredGroup) -> Group: ...

    async def take(self, step: int) -> list[Group]:
        groups = await self.base.take(step)
        scores = await self.context.rewards(groups)
        played = [ScoredGroup(*pair) for pair in zip(groups, scores, strict=True)]
        return await asyncio.gather(*(self.changed(step, scored) for scored in played))

    async def close(self) -> None:
        await self.base.close()

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        if isinstance(self.base, Observes):
            self.base.observe(groups, scores)

    def metrics(self) -> Mapping[str, float]:
        return self.base.metrics() if isinstance(self.base, Measured) else {}

    def queue(self) -> GroupQueue:
        return queue_of(self.base)

    def state(self) -> Mapping[str, Any]:
        return {"base": self.base.state()} if isinstance(self.base, Stateful) else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        if isinstance(self.base, Stateful):
            self.base.restore(state["base"])


def with_episode(scored: ScoredGroup, number: int, episode: Episode, scores: Sequence[Score]) -> ScoredGroup:
    """Returns the group with another episode, which has these scores, in place of that of a number."""
    episodes = list(scored.group.episodes)
    before = [s for s, owner in zip(scored.scores, scored.group.owners, strict=True) if owner < number]
    after = [s for s, owner in zip(scored.scores, scored.group.owners, strict=True) if owner > number]
    episodes[number] = episode
    return ScoredGroup(replace(scored.group, episodes=tuple(episodes)), [*before, *scores, *after])
