"""A world in which each signal asks for a word of its own: what an action is worth shows at once."""

from __future__ import annotations

import random
from dataclasses import dataclass

from sojourn.tasks import Generated
from sojourn.types import Message, Observation, Role, Step, Task

RIGHT = {"red": "stop", "green": "go", "blue": "wait"}


@dataclass(frozen=True, kw_only=True)
class Signals:
    """Two signals are answered in a play, each right word pays 1, and both are a success. The expert says the right
    word four times of ten, else any of the three."""

    def tasks(self, split: str):
        first = 0 if split == "train" else 1_000_000
        return Generated(lambda index: Task("signals", {}, first + index, split), 2_000)

    def make(self, task: Task) -> Play:
        return Play(random.Random(task.seed))


class Play:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.right = rng, [rng.choice(list(RIGHT)) for _ in range(2)]
        self.answers: list[bool] = []

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, self.right[0]),))

    async def step(self, agent: str, action: Message) -> Step:
        self.answers.append(action.text.strip() == RIGHT[self.right[len(self.answers)]])
        pays = {agent: float(self.answers[-1])}
        if len(self.answers) == 2:
            return Step(None, pays, done=True, success=all(self.answers))
        return Step(Observation((Message(Role.USER, self.right[1]),)), pays, done=False)

    async def close(self) -> None: ...

    def expert(self) -> str:
        right = RIGHT[self.right[len(self.answers)]]
        return right if self.rng.random() < 0.4 else self.rng.choice(list(RIGHT.values()))
