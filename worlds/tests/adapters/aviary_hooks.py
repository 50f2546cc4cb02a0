"""An environment of Aviary with state in itself, its dataset, and who knows how to solve it."""

from __future__ import annotations

import random
import threading

from aviary.core import Environment, Message, TaskDataset, Tool


class Safe(Environment):
    """A number from 1 to 50 is to be found: `guess` says higher or lower; the right one opens the safe."""

    go = threading.Event()
    closed = 0

    def __init__(self, seed: int, tries: int = 8, handle: bool = False, hammer: bool = False):
        self.hammer = hammer
        self.number, self.left = random.Random(seed).randint(1, 50), tries
        self.low, self.high = 1, 50
        if handle:
            self.handle = (i for i in range(3))  # cannot be copied

    @classmethod
    def from_task(cls, task):
        return cls(seed=int(task))

    async def reset(self):
        self.tools = [Tool.from_function(self.guess)]
        self.tools += [Tool.from_function(self.smash), Tool.from_function(self.wait)] * self.hammer
        self.reward, self.done = 0.0, False
        asked = Message(content="Open the safe: its number is from 1 to 50.")
        return [Message(role="system", content="You crack safes."), asked], self.tools

    async def close(self):
        Safe.closed += 1

    async def step(self, action):
        answers = await self.exec_tool_calls(action, concurrency=False)
        return answers, self.reward, self.done, not self.done and self.left <= 0

    def guess(self, number: int) -> str:
        """Try a number.

        Args:
            number: from 1 to 50
        """
        if not 1 <= number <= 50:
            raise ValueError(f"{number} is not on the dial")
        self.left -= 1
        if number == self.number:
            self.reward, self.done = 2.0, True
            return "It opens."
        if number < self.number:
            self.low = number + 1
        else:
            self.high = number - 1
        return "higher" if number < self.number else "lower"

    def wait(self) -> str:
        """Takes a while."""
        assert self.go.wait(20.0)
        return "at last"

    async def smash(self) -> str:
        """Hit it."""
        raise RuntimeError("the hammer is gone")


class Safes(TaskDataset):
    def __init__(self, first: int = 0, size: int = 20, handle: bool = False, hammer: bool = False):
        self.first, self.size, self.handle, self.hammer = first, size, handle, hammer

    def __len__(self):
        return self.size

    def get_new_env_by_idx(self, idx):
        return Safe(self.first + idx, handle=self.handle, hammer=self.hammer)


async def halve(env):
    return f"guess({(env.low + env.high) // 2})"


def story(env):
    return "print_story('five words make one story')"
