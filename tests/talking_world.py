"""A world of a user who wants a word, and says after each reply whether it was the right one."""

from __future__ import annotations

import random
from dataclasses import dataclass

from sojourn.tasks import Generated
from sojourn.types import Message, Observation, Role, Step, Task

RIGHT = {"red": "stop", "green": "go", "blue": "wait"}


@dataclass(frozen=True, kw_only=True)
class Talking:
    """Asks about three signals, one after the other. The world pays nothing; it knows whether all were answered
    right."""

    def tasks(self, split: str):
        first = 0 if split == "train" else 1_000_000
        return Generated(lambda index: Task("talking", {}, first + index, split), 2_000)

    def make(self, task: Task) -> Play:
        return Play(random.Random(task.seed))


class Play:
    def __init__(self, rng: random.Random) -> None:
        self.asked = [rng.choice(list(RIGHT)) for _ in range(3)]
        self.right: list[bool] = []
        self.reaction = ""

    async def start(self) -> Observation:
        return self._observation()

    async def step(self, agent: str, action: Message) -> Step:
        if len(self.right) == len(self.asked):  # the agent's word after the last reaction
            return Step(None, done=True, success=all(self.right))
        wanted = RIGHT[self.asked[len(self.right)]]
        self.right.append(action.text.strip() == wanted)
        self.reaction = "Thanks. " if self.right[-1] else f"No, I wanted: {wanted}. "
        return Step(self._observation())

    async def close(self) -> None: ...

    def _observation(self) -> Observation:
        signal = f"{self.asked[len(self.right)]}?" if len(self.right) < len(self.asked) else "Bye."
        return Observation((Message(Role.USER, self.reaction + signal),), choices=tuple(RIGHT.values()))
