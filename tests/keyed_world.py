"""A small world with state keys for tests of searches that tell states apart."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from search_worlds import TASK, Family

from sojourn.errors import ActionError
from sojourn.types import Message, Observation, Role, Step, Task

GOAL = 4


@dataclass
class Walk:
    """Walks along a line to `GOAL`: "1" goes on, "3" goes on twice, "2" goes back and, at the start, is answered with
    an error, as "0" is everywhere; "9" is refused. The key is where one is."""

    family: Family
    at: int = 0

    async def start(self) -> Observation:
        return self._shown()

    async def step(self, agent: str, action: Message) -> Step:
        self.family.steps += 1
        await asyncio.sleep(self.family.slow * (self.family.steps % 3))
        if action.text == "9":
            raise ActionError("there is no nine")
        before, self.at = self.at, min(max(self.at + {"1": 1, "2": -1, "3": 2}.get(action.text, 0), 0), GOAL)
        if self.at == GOAL:
            return Step(None, {agent: 1.0}, done=True, success=True)
        return Step(self._shown(), {agent: 0.0}, info={"error": float(self.at == before)})

    async def fork(self) -> Walk:
        self.family.forks += 1
        return replace(self)

    async def close(self) -> None: ...

    def state_key(self) -> str:
        return str(self.at)

    def _shown(self) -> Observation:
        return Observation((Message(Role.USER, f"at {self.at}"),))


@dataclass
class Walks(Family):
    """A world of that one task, or of several that are alike."""

    kind: type = Walk
    count: int = 1

    def tasks(self, split: str) -> list[Task]:
        return [TASK, *(replace(TASK, seed=seed) for seed in range(1, self.count))]
