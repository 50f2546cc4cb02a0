"""Demonstrations by the world's scripted experts, as groups like any other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from sojourn.config.registry import Range
from sojourn.errors import ConfigError
from sojourn.rollout.world import offers
from sojourn.sources.context import SourceContext, StageContext
from sojourn.types import Group


@dataclass(frozen=True, kw_only=True)
class Experts:
    """`width` demonstrations a step, over and over from the curriculum's next `distinct` tasks.

    An expert plays through the same environment, agent and renderer as the model, so a demonstration has exactly the
    tokens that the model would have sampled. Only successful ones are kept when `success_only`.
    """

    width: Annotated[int, Range(1)] = 16
    distinct_tasks: Annotated[int, Range(1)] = 128
    success_only: bool = True

    live = False
    size = 1

    def tasks(self, steps: int) -> int:
        return min(self.distinct_tasks, self.width * steps)

    async def check(self, stage: StageContext) -> None:
        if not await offers(stage.env, "expert", stage.limits):
            raise ConfigError(
                f"stage '{stage.name}' clones demonstrations, but the world has no expert(): define it, or drop "
                "the stage"
            )

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> LiveExperts:
        return LiveExperts(self, context, stage, first)


@dataclass
class LiveExperts:
    config: Experts
    context: SourceContext
    stage: str
    first: int = 0
    played: dict[int, Group] = field(default_factory=dict)

    async def take(self, step: int) -> list[Group]:
        width, distinct = self.config.width, self.config.distinct_tasks
        numbers = [(step * width + n) % distinct for n in range(width)]
        groups = await asyncio.gather(*(self._play(number) for number in dict.fromkeys(numbers)))
        played = [g for g in groups if g.trajectories]  # those of a world that failed are empty
        kept = [g for g in played if not self.config.success_only or all(t.success for t in g.trajectories)]
        if not kept:
            errors = [e.error for g in groups for e in g.episodes if e.error]
            cause = errors[0] if errors else "the experts did not succeed"
            raise ConfigError(f"none of {len(groups)} demonstrations can be used: {cause}")
        return kept

    async def close(self) -> None:
        pass

    async def _play(self, number: int) -> Group:
        if number not in self.played:
            task = self.context.curriculum.draw(self.first + number)
            label = f"{self.stage}/{number}"
            self.played[number] = await self.context.runner.group(
                task, number, 1, self.context.params, label, expert=True
            )
        return self.played[number]
