"""A world of keys and doors, written once for both sides of `vs_trl.py`, Sojourn's way into it, one record of steps.

The layouts and the sentences are those of Sojourn's `toy`; the dynamics here are plain and synchronous, so that any
trainer can play them.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sojourn.envs import toy
from sojourn.tasks import Generated
from sojourn.types import Message, Observation, Role, Step, Task

BRIEF = toy.BRIEF


@dataclass
class KeyDoor:
    """One play of `turns` actions: `observation` is what the agent reads next, None at the end.

    Nothing that is said ends the play: what is no action is answered and costs its turn. `fixed` plays have exactly
    `turns` turns, treasure or not, and pay a hash of what was said: so no group is without signal (Sojourn spends
    nothing on those), and both sides have the same work whatever the model can do.
    """

    layout: toy.Layout
    turns: int
    fixed: bool = False
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = toy.State(self.layout.start)
        self.seen = {self.layout.start}
        self.observation: str | None = self.layout.describe(self.state, self.seen)

    @property
    def won(self) -> bool:
        return toy.TREASURE in self.state.carried

    @property
    def reward(self) -> float:
        return zlib.crc32("\n".join(self.said).encode()) / 2**32 if self.fixed else float(self.won)

    def say(self, text: str) -> None:
        words = text[:200].lower().split()
        action, moves = " ".join(words), self.layout.moves(self.state)
        self.said.append(action)
        known = action in moves
        if known:
            self.state = moves[action]
            self.seen.add(self.state.room)
        over = len(self.said) == self.turns or (self.won and not self.fixed)
        answer = self.layout.describe(self.state, self.seen) if known else self.layout.refusal(self.state, words)
        self.observation = None if over else answer

    def expert(self) -> str:
        return self.layout.explore(self.state, self.seen)[0]


@dataclass(frozen=True, kw_only=True)
class KeyDoors:
    """Sojourn's environment family of `KeyDoor`; training plays the tasks from `first` on, in order."""

    rooms: int = 2
    side_rooms: int = 1
    doors: int = 1
    decoys: int = 0
    objects: int = 1
    turns: int = 8
    fixed: bool = False
    first: int = 0

    def tasks(self, split: str) -> Sequence[Task]:
        sizes = {name: getattr(self, name) for name in ("rooms", "side_rooms", "doors", "decoys", "objects")}
        tasks = toy.Toy(**sizes, train=10**6).tasks(split)
        return tasks if split == "test" else Generated(lambda index: tasks[self.first + index], len(tasks) - self.first)

    def play(self, task: Task) -> KeyDoor:
        return KeyDoor(toy.layout(task), self.turns, self.fixed)

    def make(self, task: Task) -> Seated:
        return Seated(self.play(task))


@dataclass
class Seated:
    """`KeyDoor` as Sojourn plays it."""

    world: KeyDoor

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, str(self.world.observation)),), brief=(Message(Role.SYSTEM, BRIEF),))

    async def step(self, agent: str, action: Message) -> Step:
        self.world.say(action.text)
        if self.world.observation is None:
            return Step(None, {agent: self.world.reward}, done=True, success=self.world.won)
        return Step(Observation((Message(Role.USER, self.world.observation),)), {agent: 0.0})

    async def close(self) -> None:
        pass

    def expert(self) -> str:
        return self.world.expert()


@dataclass(frozen=True, kw_only=True)
class Clock:
    """When each step of training ended, and its figures, as lines of JSON: a sink of Sojourn, and of the other side."""

    path: str
    stage: str = "rl"

    def __call__(self, run: Path, config: Mapping[str, Any]) -> Clock:
        return self

    def write(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        if stage == self.stage:
            with Path(self.path).open("a") as file:
                now = {"at": time.monotonic(), "cpu": time.process_time()}  # of all threads
                file.write(json.dumps({**now, "step": step, **values}) + "\n")

    def close(self) -> None:
        pass
