"""Groups of several sources in each step, such as live ones and replayed ones."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from sojourn.abilities import Checks, GroupQueue, Measured, Observes, Recalls, max_lag, play_lag, queue_of
from sojourn.config.fields import Kind
from sojourn.protocols import Source, SourceConfig, Stateful
from sojourn.sources.context import SourceContext, StageContext
from sojourn.types import Group, Score


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """All groups of all `parts` in each step, in their order; their `width`s say how much of it each gives.

    A part that gives no groups leaves the others as they are without it: a step of live groups and none replayed is a
    step of live groups, bit for bit. One part may be live, as every live group of a step is a slot of its own.
    Estimators see all groups of a step; whatever compares groups with each other compares those of all parts.
    """

    parts: Annotated[tuple[SourceConfig[SourceContext], ...], Kind("groups")]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("parts = []: name at least one source, such as {name = 'slots'}")
        if sum(part.live for part in self.parts) > 1:
            raise ValueError("parts has two sources whose groups the policy plays: give one of them more width instead")

    @property
    def width(self) -> int:
        return sum(part.width for part in self.parts)

    @property
    def live(self) -> bool:
        return any(part.live for part in self.parts)

    @property
    def max_lag(self) -> int:
        return max(map(max_lag, self.parts))

    @property
    def play_lag(self) -> int:
        return max(map(play_lag, self.parts))

    def tasks(self, steps: int) -> int:
        return sum(part.tasks(steps) for part in self.parts)

    async def check(self, stage: StageContext) -> None:
        for part in self.parts:
            if isinstance(part, Checks):
                await part.check(stage)

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> MixedGroups:
        bound: list[Source] = []
        for part in self.parts:
            bound.append(part.bind(context, stage, steps, first))
            first += part.tasks(steps)
        return MixedGroups(bound)


@dataclass(frozen=True)
class MixedGroups:
    """Takes the groups of a step from all parts at once, but for those that recall recorded ones, which come last."""

    parts: Sequence[Source]

    async def take(self, step: int) -> list[Group]:
        taken: dict[int, list[Group]] = {}
        for late in (False, True):
            numbers = [number for number, part in enumerate(self.parts) if isinstance(part, Recalls) is late]
            found = await asyncio.gather(*(self.parts[number].take(step) for number in numbers))
            taken |= zip(numbers, found, strict=True)
        return [group for number in sorted(taken) for group in taken[number]]

    async def close(self) -> None:
        for part in self.parts:
            await part.close()

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        for part in self.parts:
            if isinstance(part, Observes):
                part.observe(groups, scores)

    def metrics(self) -> Mapping[str, float]:
        measured = [part.metrics() for part in self.parts if isinstance(part, Measured)]
        return {name: value for metrics in measured for name, value in metrics.items()}

    def queue(self) -> GroupQueue:
        queues = [queue_of(part) for part in self.parts]
        return GroupQueue(sum(queue.playing for queue in queues), sum(queue.complete for queue in queues))

    def state(self) -> Mapping[str, Any]:
        return {str(n): part.state() for n, part in enumerate(self.parts) if isinstance(part, Stateful)}

    def restore(self, state: Mapping[str, Any]) -> None:
        for number, part in enumerate(self.parts):
            if isinstance(part, Stateful):
                part.restore(state[str(number)])
